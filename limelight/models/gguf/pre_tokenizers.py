"""`tokenizer.ggml.pre` of a byte-level vocabulary -> how text is cut before merging.

A name stands for the pre-tokenizer of one published tokenizer; only those that are known for certain are listed. The
expressions are those of the models' own `tokenizer.json` files.
"""

import msgspec
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from limelight.errors import UnsupportedModel

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
KNOWN = (
    *("default", "gpt-2", "phi-2", "olmo", "mpt", "smollm", "starcoder", "refact", "command-r", "llama-bpe", "llama3"),
    *("llama-v3", "dbrx", "smaug-bpe", "qwen2", "deepseek-r1-qwen", "qwen35", "tekken", "gpt-4o", "llama4"),
    "deepseek-v3",
)
"""Every name that `byte_pre_tokenizer` takes."""


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
    match name:
        case "default" | "gpt-2" | "phi-2":
            return BytePreTokenizer()
        case "olmo" | "mpt":  # both use the tokenizer of GPT-NeoX
            return BytePreTokenizer(compose=True)
        case "smollm" | "starcoder" | "refact":
            return BytePreTokenizer(single_digits=True)
        case "command-r":
            return BytePreTokenizer(single_digits=True, compose=True)
        case "llama-bpe" | "llama3" | "llama-v3":
            return BytePreTokenizer(expressions=(LLAMA3,), ignore_merges=True, add_bos=True)
        case "dbrx" | "smaug-bpe":
            return BytePreTokenizer(expressions=(LLAMA3,))
        case "qwen2" | "deepseek-r1-qwen":
            return BytePreTokenizer(expressions=(QWEN2,), compose=True)
        case "qwen35":
            return BytePreTokenizer(expressions=(QWEN35,), compose=True)
        case "tekken":
            return BytePreTokenizer(expressions=(TEKKEN,), ignore_merges=True, add_bos=True)
        case "gpt-4o" | "llama4":
            return BytePreTokenizer(expressions=(GPT4O,))
        case "deepseek-v3":
            return BytePreTokenizer(expressions=DEEPSEEK3)
    raise UnsupportedModel(
        f"tokenizer.ggml.pre is {name!r}, which Limelight cannot read exactly; use the model's folder with its "
        f"tokenizer.json, or a file with one of: {', '.join(KNOWN)}"
    )
