"""A token as the tokenizer writes it ("Ġthe", "▁the", "<0xE2>") -> the raw bytes that it adds to a running text.

Derived from the decoder in `tokenizer.json`. Only decoders whose tokens mean the same wherever they stand (after the
first one) are accepted; of the others, no exact text could be streamed, so they are refused by name.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers.decoders import Decoder

from limelight.errors import UnsupportedModel
from limelight.quoting import quoted

PieceReader = Callable[[str], bytes]


def piece_reader(decoder: Decoder | None) -> PieceReader:
    """The function from a token's written form to its bytes, a leading space included.

    Raises:
        UnsupportedModel: the decoder's tokens have no bytes of their own.
    """
    if decoder is None:  # the library then joins tokens with spaces
        return lambda piece: b" " + piece.encode()
    stages = _flattened(json.loads(decoder.__getstate__()))
    kinds = [stage["type"] for stage in stages]
    if kinds == ["ByteLevel"]:
        return byte_level_reader()
    if kinds == ["WordPiece"]:
        return _difference_reader(decoder)
    return _sentencepiece_reader(stages)


def byte_level_reader() -> PieceReader:
    """GPT-2's alphabet: each byte is written as one printable character. Anything else stands for itself."""
    byte_of = {ord(character): byte for byte, character in enumerate(byte_level_alphabet())}

    def read(piece: str) -> bytes:
        try:
            return bytes([byte_of[ord(character)] for character in piece])
        except KeyError:
            return piece.encode()

    return read


def byte_level_alphabet() -> str:
    """256 characters, one per byte: printable Latin-1 is itself, the rest follows from U+0100 (GPT-2, Radford 2019)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


def is_byte_level(decoder: Decoder | None) -> bool:
    """Whether tokens are written in GPT-2's alphabet."""
    return decoder is not None and [s["type"] for s in _flattened(json.loads(decoder.__getstate__()))] == ["ByteLevel"]


def _flattened(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [stage for part in decoder["decoders"] for stage in _flattened(part)]


def _difference_reader(decoder: Decoder) -> PieceReader:
    """What the token adds after another one. Exact for WordPiece, which looks at one token at a time."""
    before = "a"
    start = len(decoder.decode([before]))
    return lambda piece: decoder.decode([before, piece])[start:].encode()


def _sentencepiece_reader(stages: list[Mapping[str, Any]]) -> PieceReader:
    """SentencePiece under its several spellings: `Metaspace`, or replacements, byte fallback, fuse and strip.

    Stripping after `Fuse` takes a space from the start of a whole text, which a running text never meets.
    """
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    for stage in stages:
        match stage:
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
                replacements.append((pattern, content))
            case {"type": "Metaspace", "replacement": str(replacement)}:
                replacements.append((replacement, " "))
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "stop": 0} if fused:
                pass
            case _:
                raise UnsupportedModel(
                    f"the tokenizer's decoder has the stage {quoted(stage['type'])}, whose tokens have no text of "
                    "their own; ByteLevel, Metaspace, WordPiece and the SentencePiece stages are supported"
                )

    def read(piece: str) -> bytes:
        if byte_fallback and (byte := _fallback_byte(piece)) is not None:
            return bytes([byte])
        for pattern, content in replacements:
            piece = piece.replace(pattern, content)
        return piece.encode()

    return read


def _fallback_byte(piece: str) -> int | None:
    """0xE2 of "<0xE2>", None for any other piece."""
    if len(piece) != 6 or not piece.startswith("<0x") or piece[5] != ">":
        return None
    try:
        return int(piece[3:5], 16)
    except ValueError:
        return None
