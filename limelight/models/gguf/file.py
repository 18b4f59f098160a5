"""A GGUF file, version 2 or 3, memory-mapped: its metadata and where its tensors lie. Knows no model.

Specification: `docs/gguf.md` of ggml. The header is not trusted: every count, length and offset is checked against the
bytes that are there before anything of that size is made.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.gguf.blocks import FORMATS, UNSUPPORTED, Format
from limelight.quoting import quoted

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 2**20
MAX_ENTRIES = 2**16
"""Most metadata keys, and most tensors, of one file."""
MAX_ARRAY_VALUES = 2**23
"""Most values in all metadata arrays together; the largest vocabularies with merges have under a million."""
MAX_KEY_BYTES = 2**16 - 1
MAX_TENSOR_NAME_BYTES = 255
"""The specification allows 64; messages about a tensor quote its name as it is."""
MAX_DIMENSIONS = 4
MAX_NESTING = 4
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Metadata value types by number, as `struct` codes; BOOL is 7."""
STRING, ARRAY, BOOL = 8, 9, 7


class GgufTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies.

    Attributes:
        shape: outermost first, as in numpy; the last dimension is contiguous and a whole number of blocks.
        start: offset in the file.
    """

    name: str
    format: Format
    shape: tuple[int, ...]
    start: int
    num_bytes: int


class GgufFile:
    """An open file. The mapping lives as long as this object or a tensor that came from it.

    Attributes:
        metadata: key -> int, float, bool, str or a list of these.
        tensors: by name, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and read its header.

        Raises:
            CheckpointError: not a GGUF file, truncated, or contradictory.
            UnsupportedModel: another version, byte order or tensor format.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                # A private copy-on-write mapping: torch wants memory that could be written, the file never is.
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be mapped ({error}); it is empty or unreadable") from error
        header = _Header(self._bytes, path)
        num_tensors, num_keys = header.read_counts()
        self.metadata = header.read_metadata(num_keys)
        self.tensors = header.read_tensors(num_tensors, self._alignment())

    def stored(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, [num_bytes], shared with the file; not to be written."""
        tensor = self.tensors[name]
        return np.frombuffer(self._bytes, np.uint8, tensor.num_bytes, tensor.start)

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise CheckpointError(
                f"{self.path}: general.alignment is {quoted(alignment)}; it must be a power of two "
                f"up to {MAX_ALIGNMENT}"
            )
        return alignment


class _Header:
    """A reading position in the header, which never passes the end of the file."""

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self.content = content
        self.size = len(content)
        self.path = path
        self.position = 0
        self.array_values_left = MAX_ARRAY_VALUES

    def read_counts(self) -> tuple[int, int]:
        """Number of tensors and of metadata keys, after the magic and the version."""
        if self.content[:4] != MAGIC:
            raise CheckpointError(f"{self.path} is not a GGUF file (it does not begin with 'GGUF'); download it again")
        self.position = 4
        version = self.scalar("I")
        if version in (2 << 24, 3 << 24):
            raise UnsupportedModel(f"{self.path} is a big-endian GGUF file; Limelight reads little-endian ones")
        if version not in (2, 3):
            raise UnsupportedModel(f"{self.path} is a GGUF file of version {version}; Limelight reads versions 2 and 3")
        counts = []
        for what, smallest in (("tensors", 25), ("metadata keys", 13)):
            count = self.scalar("Q")
            # The smallest entries: a tensor with an empty name and one dimension, an empty key with a one-byte value.
            if count > MAX_ENTRIES or count * smallest > self.size:
                raise CheckpointError(f"{self.path} claims {count} {what}, which its {self.size} bytes cannot hold")
            counts.append(count)
        return counts[0], counts[1]

    def read_metadata(self, num_keys: int) -> dict[str, Any]:
        """All keys and values."""
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.name("metadata key", MAX_KEY_BYTES)
            if key in metadata:
                raise CheckpointError(f"{self.path} holds the metadata key {quoted(key)} twice; the file is corrupt")
            metadata[key] = self.value(self.scalar("I"), key, MAX_NESTING)
        return metadata

    def read_tensors(self, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
        """Where all tensors lie, checked against the file's size and each other."""
        entries = [self.tensor_entry() for _ in range(num_tensors)]
        data_start = -(-self.position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        end_of_previous = 0
        for name, number_format, shape, offset in sorted(entries, key=lambda entry: entry[3]):
            num_bytes = math.prod(shape) // number_format.block_size * number_format.block_bytes
            if name in tensors:
                raise CheckpointError(f"{self.path} holds the tensor {quoted(name)} twice; the file is corrupt")
            if offset % alignment or offset < end_of_previous:
                raise CheckpointError(
                    f"{self.path}: tensor {quoted(name)} begins at {offset}, unaligned or inside another one"
                )
            if offset + num_bytes > self.size - data_start:
                raise CheckpointError(
                    f"{self.path} is cut short: tensor {quoted(name)} ends at byte {data_start + offset + num_bytes}, "
                    f"the file has {self.size}; download it again"
                )
            end_of_previous = offset + num_bytes
            tensors[name] = GgufTensor(name, number_format, shape, data_start + offset, num_bytes)
        return {entry[0]: tensors[entry[0]] for entry in entries}

    def tensor_entry(self) -> tuple[str, Format, tuple[int, ...], int]:
        """Name, format, shape and offset of the next tensor."""
        name = self.name("tensor name", MAX_TENSOR_NAME_BYTES)
        num_dimensions = self.scalar("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise CheckpointError(
                f"{self.path}: tensor {quoted(name)} has {num_dimensions} dimensions; 1 to 4 are possible"
            )
        shape = tuple(self.scalar("Q") for _ in range(num_dimensions))[::-1]
        code = self.scalar("I")
        offset = self.scalar("Q")
        number_format = FORMATS.get(code)
        if number_format is None:
            supported = ", ".join(known.name for known in FORMATS.values())
            raise UnsupportedModel(
                f"{self.path}: tensor {quoted(name)} is stored as {UNSUPPORTED.get(code, f'unknown type {code}')}; "
                f"Limelight reads {supported}; use a file quantised to one of these"
            )
        if 0 in shape or shape[-1] % number_format.block_size:
            raise CheckpointError(
                f"{self.path}: tensor {quoted(name)} has the shape {list(shape)}; no dimension may be 0 and the last "
                f"one must be a multiple of {number_format.block_size} ({number_format.name})"
            )
        return name, number_format, shape, offset

    def value(self, kind: int, key: str, nesting: int) -> Any:
        """The next metadata value, of the type with number `kind`."""
        if kind == STRING:
            return self.string(self.size)
        if kind == BOOL:
            return self.scalar("B") != 0
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        where = f"{self.path}: the metadata key {quoted(key)}"
        if kind != ARRAY:
            raise CheckpointError(f"{where} has the unknown type {kind}; the file is corrupt")
        if nesting == 0:
            raise CheckpointError(f"{where} nests arrays deeper than {MAX_NESTING}; the file is corrupt")
        item_kind = self.scalar("I")
        count = self.scalar("Q")
        self.array_values_left -= count
        if self.array_values_left < 0 or count * self.smallest(item_kind) > self.size - self.position:
            raise CheckpointError(f"{where} claims {count} values, more than the file can hold")
        if item_kind in SCALARS:
            return self.scalars(SCALARS[item_kind], count)
        if item_kind == STRING:
            return [self.string(self.size) for _ in range(count)]
        return [self.value(item_kind, key, nesting - 1) for _ in range(count)]

    def smallest(self, kind: int) -> int:
        """Bytes that a value of the type with number `kind` takes at least."""
        # The length of an empty string, and the type and length of an empty array.
        lengths = {STRING: 8, ARRAY: 12}
        return lengths.get(kind) or struct.calcsize(SCALARS.get(kind, "B"))

    def scalar(self, code: str) -> Any:
        """The next number."""
        size = struct.calcsize(code)
        self.need(size)
        (value,) = struct.unpack_from(f"<{code}", self.content, self.position)
        self.position += size
        return value

    def scalars(self, code: str, count: int) -> list[Any]:
        """The next `count` numbers."""
        kind = np.dtype(f"<{code}" if code != "?" else "?")
        self.need(kind.itemsize * count)
        values: list[Any] = np.frombuffer(self.content, kind, count, self.position).tolist()
        self.position += kind.itemsize * count
        return values

    def name(self, what: str, limit: int) -> str:
        """The next key or tensor name: short, valid UTF-8."""
        try:
            return self.string(limit, errors="strict")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: a {what} is not valid UTF-8; the file is corrupt") from error

    def string(self, limit: int, errors: str = "replace") -> str:
        """The next string, at most `limit` bytes long. Invalid UTF-8 in a value becomes U+FFFD."""
        start = self.position + 8
        if start > self.size:
            self.need(8)
        (length,) = struct.unpack_from("<Q", self.content, self.position)
        if length > limit or length > self.size - start:
            raise CheckpointError(
                f"{self.path}: a string claims {length} bytes, more than possible; the file is corrupt"
            )
        self.position = start + length
        return self.content[start : self.position].decode("utf-8", errors)

    def need(self, num_bytes: int) -> None:
        """Refuse to read past the end."""
        if num_bytes > self.size - self.position:
            raise CheckpointError(f"{self.path} ends inside its header, after {self.size} bytes; download it again")
