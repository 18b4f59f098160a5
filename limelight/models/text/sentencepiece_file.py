"""`tokenizer.model`, SentencePiece's protocol buffer -> `SentencePieceModel`. Nothing in the file is trusted.

Follows `sentencepiece_model.proto` and the wire format of protocol buffers; reads the few fields that decide about
tokens and skips the rest.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from limelight.errors import CheckpointError
from limelight.models.text.sentencepiece_bpe import SentencePieceModel, TokenKind

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_PIECES = 2**21
MAX_VARINT_BYTES = 10
BPE_MODEL = 2
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class SentencePieceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model, and what stands beside it in its file.

    Attributes:
        bos_id, eos_id: token ids, or None if the model has no such token.
    """

    model: SentencePieceModel
    bos_id: int | None
    eos_id: int | None


def read_sentencepiece_file(path: Path) -> SentencePieceFile | None:
    """The model in a file; None if its tokens follow other rules than merging by score over unchanged characters.

    Raises:
        CheckpointError: unreadable, too large, or not a SentencePiece model.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise CheckpointError(f"{path} has {size} bytes; a SentencePiece model has at most {MAX_FILE_BYTES}")
        return _read(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise CheckpointError(f"{path} is not a SentencePiece model ({error}); download it again") from error


def _read(message: bytes) -> SentencePieceFile | None:
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(message):
        if number == 1:
            entry = dict(_fields(_bytes(value)))
            pieces.append(_bytes(entry.get(1, b"")).decode())
            scores.append(_float(entry.get(2, bytes(4))))
            kinds.append(_number(entry.get(3, TokenKind.NORMAL)))
            if len(pieces) > MAX_PIECES:
                raise ValueError(f"it has more than {MAX_PIECES} pieces")
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    model = SentencePieceModel(
        pieces=pieces,
        kinds=kinds,
        scores=scores,
        add_space_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
    )
    mergeable = (
        trainer.get(3, 1) == BPE_MODEL
        and not trainer.get(24, 0)  # treat_whitespace_as_suffix
        and not normalizer.get(2, b"")  # precompiled_charsmap
        and bool(normalizer.get(5, 1))  # escape_whitespaces
        and TokenKind.UNUSED not in kinds  # they take part in merges there
    )
    if not mergeable:
        return None
    return SentencePieceFile(
        model=model,
        bos_id=_control_id(trainer.get(41, 1), kinds),
        eos_id=_control_id(trainer.get(42, 2), kinds),
    )


def _control_id(value: int | bytes, kinds: list[int]) -> int | None:
    """The id of a control token; models that have none write -1, which reads as a huge number."""
    token_id = _number(value)
    return token_id if token_id < len(kinds) and kinds[token_id] == TokenKind.CONTROL else None


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("a field holds a number where bytes belong")


def _float(value: int | bytes) -> float:
    raw = _bytes(value)
    if len(raw) != struct.calcsize("<f"):
        raise ValueError(f"a field holds {len(raw)} bytes where a number of 4 bytes belongs")
    number: float = struct.unpack("<f", raw)[0]
    if math.isnan(number):
        raise ValueError("a piece's score is not a number")
    return number


def _number(value: int | bytes) -> int:
    if isinstance(value, int):
        return value
    raise ValueError("a field holds bytes where a number belongs")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: number, and an integer or the raw bytes (four or eight for fixed numbers)."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == VARINT:
            number, position = _varint(message, position)
            yield tag >> 3, number
            continue
        if kind == BYTES:
            length, position = _varint(message, position)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"byte {position} begins a field of the unknown type {kind}")
        if length > len(message) - position:
            raise ValueError(f"byte {position} begins a field of {length} bytes; {len(message) - position} are left")
        yield tag >> 3, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError(f"byte {position} begins a number that does not end")
