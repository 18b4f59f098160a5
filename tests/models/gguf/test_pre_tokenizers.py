"""Every name in `tokenizer.ggml.pre` cuts as the tokenizer does that it stands for."""

import unicodedata
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from limelight.errors import InvalidRequest, UnsupportedModel
from limelight.models.gguf.pre_tokenizers import PRE_TOKENIZERS
from limelight.models.gguf.vocabulary import vocabulary_from_gguf
from tests.models.gguf.byte_level_vocabularies import byte_level_metadata
from tests.models.text.hard_strings import HARD_STRINGS, LONE_SURROGATES

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


def test_an_unknown_pre_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="'viking'"):
        vocabulary_from_gguf(byte_level_metadata("viking", ["a"]))
