"""SentencePiece models for tests: trained on a few lines, or written down from pieces that are known."""

import io
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import sentencepiece

from limelight.models.text.sentencepiece_bpe import TokenKind

TRAINING = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "In the beginning there was a tokenizer; it merged and merged until nothing was left to merge.",
    "def function(argument):\n    return argument  # comment",
    "aaaa aaab abab baba bbbb  double  spaces   and    more",
    "Numbers 1 22 333 4444 and 3.14159, prices at 10,000.",
    "Überraschung für Ångström, déjà vu, niño",
    "日本語のテキストと中文",
] * 6


def trained(**options: Any) -> bytes:
    """The `ModelProto` of a small BPE model; `options` are the trainer's own, over those of Llama's models."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING),
        model_writer=model,
        **{
            "vocab_size": 640,
            "model_type": "bpe",
            "byte_fallback": True,
            "character_coverage": 0.98,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "allow_whitespace_only_pieces": True,
            "split_digits": True,
            "hard_vocab_limit": False,
            "num_threads": 1,
            "minloglevel": 2,
            **options,
        },
    )
    return model.getvalue()


def kind_of(model: sentencepiece.SentencePieceProcessor, token_id: int, user_defined: Iterable[str] = ()) -> TokenKind:
    """What a token of a trained model is for."""
    if model.is_unknown(token_id):
        return TokenKind.UNKNOWN
    if model.is_control(token_id):
        return TokenKind.CONTROL
    if model.id_to_piece(token_id) in user_defined:
        return TokenKind.USER_DEFINED
    return TokenKind.BYTE if model.is_byte(token_id) else TokenKind.NORMAL


def written(pieces: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *, unknown_id: int) -> bytes:
    """A BPE model of these pieces that changes nothing in a text but its spaces, and adds none."""
    entries = (
        _field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind)
        for piece, score, kind in zip(pieces, scores, kinds, strict=True)
    )
    trainer = {3: 2, 35: 1, 40: unknown_id}  # BPE, byte_fallback, unk_id
    normalizer = _field(1, b"identity") + _numbers({3: 0, 4: 0, 5: 1})  # no prefix, no spaces removed, spaces as ▁
    return b"".join([*(_field(1, entry) for entry in entries), _field(2, _numbers(trainer)), _field(3, normalizer)])


def without_special_tokens(text: str, tokens: Iterable[str] = ("<s>", "</s>", "<unk>")) -> str:
    """SentencePiece itself never reads control tokens in a text; a chat prompt needs them read."""
    for token in tokens:
        text = text.replace(token, "")
    return text


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _numbers(values: dict[int, int]) -> bytes:
    return b"".join(_varint(number << 3) + _varint(value) for number, value in values.items())


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
