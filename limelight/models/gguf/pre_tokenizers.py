"""`tokenizer.ggml.pre` of a byte-level vocabulary -> how text is cut before merging.

A name stands for the pre-tokenizer of one published tokenizer; only those that are known for certain are listed. The
expressions are those of the models' own `tokenizer.json` files.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from limelight.errors import UnsupportedModel
from limelight.quoting import quoted

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"

LLAMA3 = rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
QWEN2 = rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}|{_TAIL}"
QWEN35 = (
    rf"{_CONTRACTIONS}|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)


class BytePreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """How a byte-level vocabulary reads a text.

    Attributes:
        expressions: regular expressions, one after the other: each cuts what the ones before it left, at both ends of
            its matches. None are GPT-2's rule.
        single_digits: cut between all digits first.
        compose: NFC first.
        ignore_merges: a word that is a token as a whole stays whole.
        add_bos: what a file means that does not have `add_bos_token`.
    """

    expressions: tuple[str, ...] = ()
    single_digits: bool = False
    compose: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> Normalizer | None:
        """What happens to the text before it is cut."""
        return normalizers.NFC() if self.compose else None

    def pre_tokenizer(self) -> PreTokenizer:
        """Cuts the text and writes it in GPT-2's alphabet of bytes."""
        steps: list[PreTokenizer] = [pre_tokenizers.Digits(individual_digits=True)] if self.single_digits else []
        steps += [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in self.expressions]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.expressions))
        return pre_tokenizers.Sequence(steps)


def byte_pre_tokenizer(name: str) -> BytePreTokenizer:
    """The pre-tokenizer that a GGUF file names.

    Raises:
        UnsupportedModel: the name is not known here.
    """
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"tokenizer.ggml.pre is {quoted(name)}, which Limelight cannot read exactly; use the model's folder with "
            f"its tokenizer.json, or a file with one of: {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


_GPT2 = BytePreTokenizer()
_GPT_NEOX = BytePreTokenizer(compose=True)
_STARCODER = BytePreTokenizer(single_digits=True)
_LLAMA3 = BytePreTokenizer(expressions=(LLAMA3,), ignore_merges=True, add_bos=True)
_CL100K = BytePreTokenizer(expressions=(LLAMA3,))
_QWEN2 = BytePreTokenizer(expressions=(QWEN2,), compose=True)
_O200K = BytePreTokenizer(expressions=(GPT4O,))

PRE_TOKENIZERS: Mapping[str, BytePreTokenizer] = MappingProxyType(
    {
        "default": _GPT2,
        "gpt-2": _GPT2,
        "phi-2": _GPT2,
        "olmo": _GPT_NEOX,
        "mpt": _GPT_NEOX,
        "smollm": _STARCODER,
        "starcoder": _STARCODER,
        "refact": _STARCODER,
        "command-r": BytePreTokenizer(single_digits=True, compose=True),
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "dbrx": _CL100K,
        "smaug-bpe": _CL100K,
        "qwen2": _QWEN2,
        "deepseek-r1-qwen": _QWEN2,
        "qwen35": BytePreTokenizer(expressions=(QWEN35,), compose=True),
        "tekken": BytePreTokenizer(expressions=(TEKKEN,), ignore_merges=True, add_bos=True),
        "gpt-4o": _O200K,
        "llama4": _O200K,
        "deepseek-v3": BytePreTokenizer(expressions=DEEPSEEK3),
    }
)
"""By the name in `tokenizer.ggml.pre`. Others that llama.cpp knows are left out: it follows their rules only nearly, or
their original has not been seen."""
