import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from limelight.models.gguf.blocks import BLOCKS_AT_ONCE, FORMATS, UNSUPPORTED, to_float32

ALL = [(code, number_format.name) for code, number_format in FORMATS.items()]
BLOCKED = [number_format for number_format in FORMATS.values() if number_format.block_size > 1]


@pytest.mark.parametrize(("code", "name"), ALL)
def test_values_equal_those_of_the_gguf_package(code: int, name: str) -> None:
    values = np.random.default_rng(0).normal(0.0, 3.0, (6, 96)).astype(np.float32)
    values[0, :32] = 0.0
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType(code))
    expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(code))

    turned = to_float32(torch.from_numpy(stored.view(np.uint8).copy()), name, (6, 96))

    assert turned.dtype == torch.float32
    assert turned.shape == (6, 96)
    np.testing.assert_array_equal(turned.numpy(), expected)
    assert np.abs(turned.numpy() - values).max() < 1.5


@pytest.mark.parametrize("number_format", BLOCKED)
@given(draw=st.data())
def test_any_bytes_turn_into_what_the_gguf_package_makes_of_them(number_format, draw: st.DataObject) -> None:
    num_blocks = draw.draw(st.integers(1, 4))
    raw = draw.draw(arrays.arrays(np.uint8, (num_blocks, number_format.block_bytes)))
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[number_format.name])
    turned = to_float32(torch.from_numpy(raw.copy()), number_format.name, (num_blocks, 32))
    np.testing.assert_array_equal(turned.numpy(), expected)


@pytest.mark.parametrize("number_format", BLOCKED)
def test_a_tensor_longer_than_one_portion_is_turned_to_its_end(number_format) -> None:
    num_blocks = BLOCKS_AT_ONCE + 3
    raw = np.zeros((num_blocks, number_format.block_bytes), np.uint8)
    raw[:, :2] = np.frombuffer(np.float16(1.0).tobytes(), np.uint8)
    raw[:, -1] = np.arange(num_blocks) % 128
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[number_format.name])
    np.testing.assert_array_equal(to_float32(torch.from_numpy(raw), number_format.name, expected.shape), expected)


@pytest.mark.parametrize(("code", "name"), ALL)
def test_the_result_shares_no_memory_with_the_file(code: int, name: str) -> None:
    stored = torch.zeros(FORMATS[code].block_bytes * 4, dtype=torch.uint8)
    turned = to_float32(stored, name, (4 * FORMATS[code].block_size,))
    before = turned.clone()
    stored.fill_(255)
    assert torch.equal(turned, before)


def test_names_and_sizes_of_formats_are_those_of_ggml() -> None:
    for code, number_format in FORMATS.items():
        kind = gguf.GGMLQuantizationType(code)
        assert number_format == (kind.name, *gguf.GGML_QUANT_SIZES[kind])
    for code, name in UNSUPPORTED.items():
        assert gguf.GGMLQuantizationType(code).name == name
    assert FORMATS.keys() | UNSUPPORTED.keys() >= {kind.value for kind in gguf.GGMLQuantizationType}
