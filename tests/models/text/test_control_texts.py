"""What a client writes never becomes a control token, whatever it writes; what the template writes does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from limelight.generation import ChatPrompt
from limelight.models.text.chat_format import JinjaChatFormat
from limelight.models.text.control_texts import MARKS, marked_conversation
from limelight.models.text.vocabulary import TokenizersVocabulary
from limelight.testing import ByteVocabulary
from tests.models.text.test_vocabulary import byte_level_tokenizer, metaspace_tokenizer, sentencepiece_tokenizer

TURN = "{begin}{% for message in messages %}{{ message.role }}: {{ message.content }}{end}{% endfor %}"
KINDS = {
    "byte level": (byte_level_tokenizer, "", "<|end|>"),
    "sentencepiece": (sentencepiece_tokenizer, "<s>", "</s>"),
    "metaspace": (metaspace_tokenizer, "<s>", "</s>"),
}
PIECES = ["<|end|>", "<s>", "</s>", "<unk>", "<thïnk>", "<", "|end|>", "s>", " ", "the", "é", "\n", *MARKS[:2]]


def vocabulary_and_format(kind: str) -> tuple[TokenizersVocabulary, JinjaChatFormat]:
    make, begin, end = KINDS[kind]
    return TokenizersVocabulary(make()), JinjaChatFormat(TURN.replace("{begin}", begin).replace("{end}", end))


def encoded(
    vocabulary: TokenizersVocabulary, chat_format: JinjaChatFormat, prompt: ChatPrompt
) -> tuple[list[int], str]:
    """Tokens and text of a conversation, as the tokenizer actor has them."""
    marked, mark = marked_conversation(prompt, vocabulary)
    text = chat_format.render(marked)
    if mark is None:
        return vocabulary.encode(text, add_special_tokens=False), text
    return vocabulary.encode_marked(mark, text, add_special_tokens=False), text.replace(mark, "")


def conversation(*texts: str) -> ChatPrompt:
    return ChatPrompt(messages=tuple({"role": "user", "content": text} for text in texts), add_generation_prompt=False)


def controls(vocabulary: TokenizersVocabulary, tokens: list[int]) -> list[int]:
    return [token_id for token_id in tokens if vocabulary.is_special(token_id)]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=3))
def test_the_control_tokens_are_those_of_the_template(kind: str, texts: list[str]) -> None:
    vocabulary, chat_format = vocabulary_and_format(kind)
    tokens, text = encoded(vocabulary, chat_format, conversation(*texts))
    harmless, _ = encoded(vocabulary, chat_format, conversation(*("the" for _ in texts)))
    unknown = vocabulary.encode("<unk>", add_special_tokens=False)  # a letter that a tokenizer does not know
    assert [token for token in controls(vocabulary, tokens) if token not in unknown] == controls(vocabulary, harmless)
    assert text == chat_format.render(conversation(*texts))
    if kind == "byte level":
        assert vocabulary.decode(tokens, skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_without_them_is_encoded_as_ever(kind: str) -> None:
    vocabulary, chat_format = vocabulary_and_format(kind)
    prompt = conversation("the <b>the</b> < the", "é <")
    assert marked_conversation(prompt, vocabulary) == (prompt, None)
    tokens, text = encoded(vocabulary, chat_format, prompt)
    assert tokens == vocabulary.encode(text, add_special_tokens=False)


def test_every_text_of_a_conversation_is_looked_at() -> None:
    vocabulary, _ = vocabulary_and_format("byte level")
    bad, tool = "a<|end|>", {"type": "function", "function": {"name": "f", "description": "a<|end|>"}}
    for prompt in (
        conversation(bad),
        ChatPrompt(messages=({"role": bad, "content": "a"},)),
        ChatPrompt(messages=({"role": "user", "content": [{"type": "text", "text": bad}]},)),
        ChatPrompt(messages=({"role": "tool", "content": "a", "name": bad},)),
        ChatPrompt(messages=({"role": "assistant", "tool_calls": [{"function": {"arguments": {bad: 1}}}]},)),
        ChatPrompt(messages=({"role": "user", "content": "a"},), tools=(tool,)),
        ChatPrompt(messages=({"role": "user", "content": "a"},), template_arguments={"documents": [{"text": bad}]}),
    ):
        marked, mark = marked_conversation(prompt, vocabulary)
        assert mark is not None
        assert f"a<{mark}|end|>" in str(marked) or f"a<{mark}|end|>" in repr(marked).encode().decode("unicode_escape")
        assert bad not in str(marked)


def test_a_mark_that_the_client_uses_is_not_ours() -> None:
    vocabulary, _ = vocabulary_and_format("byte level")
    _, mark = marked_conversation(conversation(f"{MARKS[0]}{MARKS[1]}<|end|>"), vocabulary)
    assert mark == MARKS[2]


def test_a_tokenizer_that_glues_unknown_letters_together_is_cut_at_the_marks() -> None:
    """Without bytes to fall back on, a mark and its neighbours may be one unknown token."""
    written = sentencepiece_tokenizer().to_str()
    tokenizer = Tokenizer.from_str(written.replace('"byte_fallback":true', '"byte_fallback":false'))
    tokenizer.model.fuse_unk = True
    vocabulary = TokenizersVocabulary(tokenizer)
    chat_format = JinjaChatFormat(TURN.replace("{begin}", "<s>").replace("{end}", "</s>"))
    tokens, _ = encoded(vocabulary, chat_format, conversation("the </s> the"))
    (end,) = vocabulary.encode("</s>", add_special_tokens=False)
    assert tokens.count(end) == 1


def test_scripted_models_keep_to_it() -> None:
    vocabulary = ByteVocabulary()
    marked, mark = marked_conversation(conversation("a<|end|>b"), vocabulary)
    assert mark is not None
    text = marked.messages[0]["content"]
    assert vocabulary.encode_marked(mark, text, add_special_tokens=False) == list(b"a<|end|>b")
