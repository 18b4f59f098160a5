import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import CheckpointError, ModelError, UnsupportedModel
from limelight.models.gguf.blocks import FORMATS, to_float32
from limelight.models.gguf.file import MAX_ARRAY_VALUES, GgufFile
from tests.models.gguf.stored_blocks import stored, values_of
from tests.models.gguf.written_models import finish

U32, STRING, ARRAY = 4, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(name: bytes, dimensions: tuple[int, ...], code: int = 0, offset: int = 0) -> bytes:
    packed = b"".join(struct.pack("<Q", size) for size in dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + packed + struct.pack("<IQ", code, offset)


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def file_bytes(
    keys: list[bytes],
    tensors: list[bytes],
    content: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    header = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(keys) + b"".join(tensors)
    return header + b"\x00" * (-len(header) % 32) + content


def opened(folder: Path, content: bytes) -> GgufFile:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return GgufFile(path)


def written(path: Path, alignment: int | None = None) -> dict[str, np.ndarray]:
    """A file with every kind of metadata value and every format, made by the gguf package; returns the values."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "Grüße 🦙")
    writer.add_array("strings", ["a", "", "ß"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("flags", [True, False])
    writer.add_array("nested", [[1, 2], [3]])
    values = {}
    random = np.random.default_rng(1)
    for code, number_format in FORMATS.items():
        raw = stored(random.normal(size=(3, 256)).astype(np.float32), number_format.name)
        writer.add_tensor(f"blk.{number_format.name}", raw, raw_dtype=gguf.GGMLQuantizationType(code))
        values[number_format.name] = values_of(raw, number_format.name)
    finish(writer)
    return values


@pytest.mark.parametrize("alignment", [None, 64])
def test_reads_what_the_gguf_package_wrote(tmp_path: Path, alignment: int | None) -> None:
    values = written(tmp_path / "model.gguf", alignment)
    file = GgufFile(tmp_path / "model.gguf")
    expected = {
        "general.architecture": "llama", "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1,
        "i32": -(2**31), "u64": 2**64 - 1, "i64": -(2**63), "f32": 0.5, "f64": 0.1, "yes": True, "no": False,
        "text": "Grüße 🦙", "strings": ["a", "", "ß"], "integers": [1, -2, 3], "floats": [0.5, -1.5],
        "flags": [True, False], "nested": [[1, 2], [3]],
    }  # fmt: skip
    assert {name: file.metadata[name] for name in expected} == expected
    assert file.metadata["yes"] is True
    for name, value in values.items():
        tensor = file.tensors[f"blk.{name}"]
        assert (tensor.format.name, tensor.shape) == (name, (3, 256))
        turned = to_float32(file.stored(f"blk.{name}"), name, tensor.shape)
        np.testing.assert_array_equal(turned, value)


def test_version_2_is_read_like_version_3(tmp_path: Path) -> None:
    content = file_bytes([key(b"a", U32, struct.pack("<I", 7))], [entry(b"t", (2,))], b"\x00" * 8, version=2)
    file = opened(tmp_path, content)
    assert file.metadata == {"a": 7}
    assert file.tensors["t"].shape == (2,)


def test_invalid_utf_8_in_a_value_is_replaced(tmp_path: Path) -> None:
    assert opened(tmp_path, file_bytes([key(b"a", STRING, text(b"x\xff"))], [])).metadata == {"a": "x\ufffd"}


def number(name: bytes, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def nested(depth: int) -> bytes:
    return b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(depth)) + struct.pack("<IQ", U32, 0)


HOSTILE = {
    "empty file": (b"", "empty"),
    "other file": (b"PK\x03\x04" * 20, "not a GGUF file"),
    "magic only": (b"GGUF", "ends inside"),
    "tensor count": (file_bytes([], [], counts=(2**63, 0)), "claims 9223372036854775808 tensors"),
    "key count": (file_bytes([], [], counts=(0, 2**40)), "metadata keys"),
    "count beyond the bytes": (file_bytes([], [], counts=(1000, 0)), "cannot hold"),
    "key length": (file_bytes([struct.pack("<Q", 2**64 - 1)], []), "claims"),
    "string length": (file_bytes([key(b"a", STRING, struct.pack("<Q", 2**40))], [], b"\x00" * 64), "claims"),
    "array length": (file_bytes([key(b"a", ARRAY, struct.pack("<IQ", U32, 2**60))], []), "more than the file can hold"),
    "array of strings": (file_bytes([key(b"a", ARRAY, struct.pack("<IQ", STRING, 2**22))], []), "more than the file"),
    "strings in too few bytes": (
        file_bytes([key(b"a", ARRAY, struct.pack("<IQ", STRING, 40))], [], b"\x00" * 100), "more than the file can",
    ),
    "arrays in too few bytes": (
        file_bytes([key(b"a", ARRAY, struct.pack("<IQ", ARRAY, 20))], [], b"\x00" * 100), "more than the file can hold",
    ),
    "array beyond the end": (file_bytes([key(b"a", ARRAY, struct.pack("<IQ", 12, 20))], []), "ends inside|more than"),
    "array in array": (file_bytes([key(b"a", ARRAY, nested(9))], []), "nests arrays"),
    "value type": (file_bytes([key(b"a", 99, b"\x00" * 8)], []), "unknown type 99"),
    "item type": (file_bytes([key(b"a", ARRAY, struct.pack("<IQ", 99, 1))], [], b"\x00" * 8), "unknown type 99"),
    "key twice": (file_bytes([number(b"a", 1), number(b"a", 2)], []), "'a' twice"),
    "key not UTF-8": (file_bytes([number(b"\xff", 1)], []), "UTF-8"),
    "tensor twice": (file_bytes([], [entry(b"t", (2,)), entry(b"t", (2,), 0, 32)], b"\x00" * 64), "'t' twice"),
    "no dimension": (file_bytes([], [entry(b"t", ())]), "0 dimensions"),
    "five dimensions": (file_bytes([], [entry(b"t", (1,) * 5)]), "5 dimensions"),
    "dimension of zero": (file_bytes([], [entry(b"t", (0, 4))]), "no dimension may be 0"),
    "size overflow": (file_bytes([], [entry(b"t", (2**62, 2**62, 2**62))]), "cut short"),
    "size overflow of 64 bits": (file_bytes([], [entry(b"t", (2**32, 2**32))], b"\x00" * 64), "cut short"),
    "half a block": (file_bytes([], [entry(b"t", (33,), 8)], b"\x00" * 96), "multiple of 32"),
    "offset beyond the end": (file_bytes([], [entry(b"t", (2,), 0, 2**40)], b"\x00" * 8), "cut short"),
    "offset overflow": (file_bytes([], [entry(b"t", (2,), 0, 2**64 - 32)], b"\x00" * 8), "cut short"),
    "data cut by a byte": (file_bytes([], [entry(b"t", (2,))], b"\x00" * 7), "cut short"),
    "offset unaligned": (file_bytes([], [entry(b"t", (2,), 0, 4)], b"\x00" * 64), "unaligned"),
    "overlap": (file_bytes([], [entry(b"t", (16,)), entry(b"u", (2,), 0, 32)], b"\x00" * 64), "inside another"),
    "alignment of zero": (file_bytes([number(b"general.alignment", 0)], []), "power of two"),
    "alignment of three": (file_bytes([number(b"general.alignment", 3)], []), "power of two"),
    "alignment of 2 GiB": (file_bytes([number(b"general.alignment", 2**31)], []), "power of two"),
    "alignment of text": (file_bytes([key(b"general.alignment", STRING, text(b"8"))], []), "power of two"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_corrupt_header_is_refused_without_large_allocations(tmp_path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            opened(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert "model.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_have_a_total_limit(tmp_path: Path) -> None:
    half = key(b"a", ARRAY, struct.pack("<IQ", 0, MAX_ARRAY_VALUES // 2 + 1) + bytes(MAX_ARRAY_VALUES // 2 + 1))
    with pytest.raises(CheckpointError, match="more than the file can hold"):
        opened(tmp_path, file_bytes([half, half.replace(b"a", b"b", 1)], []))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_bytes([], [], version=1), "version 1; Limelight reads versions 2 and 3"),
        (file_bytes([], [], version=3 << 24), "big-endian"),
        (
            file_bytes([], [entry(b"blk.0.attn_q.weight", (256,), 15)]),
            "'blk.0.attn_q.weight' is stored as Q8_K; .*Q4_1",
        ),
        (file_bytes([], [entry(b"t", (256,), 77)]), "unknown type 77"),
    ],
)
def test_another_version_byte_order_or_format_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        opened(tmp_path, content)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("gguf")
    written(folder / "valid.gguf")
    return folder, (folder / "valid.gguf").read_bytes()


@given(draw=st.data())
@settings(max_examples=300)
def test_a_damaged_file_is_read_or_refused_but_nothing_else(valid: tuple[Path, bytes], draw: st.DataObject) -> None:
    folder, content = valid
    damaged = bytearray(content)
    # Mostly in the header, where it hurts.
    places = st.one_of(st.integers(0, 1500), st.integers(0, len(content) - 1))
    for place, value in draw.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        damaged[min(place, len(damaged) - 1)] = value
    end = draw.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    tracemalloc.start()
    try:
        file = opened(folder, bytes(damaged[:end]))
        for name, tensor in file.tensors.items():
            assert to_float32(file.stored(name), tensor.format.name, tensor.shape).shape == tensor.shape
    except ModelError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**21


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing\.gguf cannot be mapped"):
        GgufFile(tmp_path / "missing.gguf")
