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
TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)


class BytePreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """How a byte-level vocabulary reads a text.

    Attributes:
        expression: a regular expression whose matches are the words; None is GPT-2's.
        single_digits: cut between all digits first.
        compose: NFC first.
        ignore_merges: a word that is a token as a whole stays whole.
        add_bos: what a file means that does not have `add_bos_token`.
    """

    expression: str | None = None
    single_digits: bool = False
    compose: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> Normalizer | None:
        """What happens to the text before it is cut."""
        return normalizers.NFC() if self.compose else None

    def pre_tokenizer(self) -> PreTokenizer:
        """Cuts the text and writes it in GPT-2's alphabet of bytes."""
        if self.expression is not None:
            return pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(self.expression), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if not self.single_digits:
            return gpt2
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])


def byte_pre_tokenizer(name: str) -> BytePreTokenizer:
    """The pre-tokenizer that a GGUF file names.

    Raises:
        UnsupportedModel: the name is not known here.
    """
    match name:
        case "default" | "gpt-2":
            return BytePreTokenizer()
        case "smollm" | "starcoder" | "refact":
            return BytePreTokenizer(single_digits=True)
        case "llama-bpe" | "llama3" | "llama-v3":
            return BytePreTokenizer(expression=LLAMA3, ignore_merges=True, add_bos=True)
        case "dbrx" | "smaug-bpe":
            return BytePreTokenizer(expression=LLAMA3)
        case "qwen2":
            return BytePreTokenizer(expression=QWEN2, compose=True)
        case "tekken":
            return BytePreTokenizer(expression=TEKKEN, ignore_merges=True, add_bos=True)
        case "gpt-4o":
            return BytePreTokenizer(expression=GPT4O)
    raise UnsupportedModel(
        f"tokenizer.ggml.pre is {name!r}, which Limelight cannot read exactly; use the model's folder with its "
        "tokenizer.json, or a file with one of: default, gpt-2, smollm, starcoder, refact, llama-bpe, dbrx, smaug-bpe, "
        "qwen2, tekken, gpt-4o"
    )
