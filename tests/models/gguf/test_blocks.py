import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from limelight.models.gguf.blocks import FORMATS, UNSUPPORTED, VALUES_AT_ONCE, to_float32
from tests.models.gguf.stored_blocks import BLOCKED, FORMAT_OF, SCALES_AT, random_blocks, stored, values_of

SCALES = [0.0, -0.0, 1.0, -1.0, 0.0123, -0.5, 6e-8, -6e-8, 3.05e-5, 6.1e-5, 65504.0, -65504.0, 1 / 3]
"""Among them subnormal float16 numbers, the largest, and both zeros."""


def turned(raw: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = to_float32(raw.copy(), name, shape)
    assert values.dtype == np.float32
    assert values.shape == shape
    return values


@pytest.mark.parametrize("name", FORMAT_OF)
def test_values_equal_those_of_the_gguf_package_to_the_last_bit(name: str) -> None:
    values = np.random.default_rng(0).normal(0.0, 3.0, (6, 512)).astype(np.float32)
    values[0, :256] = 0.0
    raw = stored(values, name)
    expected = values_of(raw, name)
    np.testing.assert_array_equal(turned(raw, name, (6, 512)).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", BLOCKED)
def test_scales_of_every_size_and_sign_give_the_same_bits(name: str) -> None:
    random = np.random.default_rng(1)
    raw = random_blocks(name, 200, random)
    for start in SCALES_AT[name]:
        raw[:, start : start + 2] = random.choice(SCALES, (200, 1)).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = np.arange(200)
    expected = values_of(raw, name)
    np.testing.assert_array_equal(turned(raw, name, expected.shape).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", BLOCKED)
@given(draw=st.data())
def test_any_bytes_turn_into_what_the_gguf_package_makes_of_them(name: str, draw: st.DataObject) -> None:
    """Scales that are infinite or not a number included."""
    num_blocks = draw.draw(st.integers(1, 4))
    raw = draw.draw(arrays.arrays(np.uint8, (num_blocks, FORMAT_OF[name].block_bytes)))
    expected = values_of(raw, name)
    np.testing.assert_array_equal(turned(raw, name, expected.shape), expected)


@pytest.mark.parametrize("name", BLOCKED)
def test_a_tensor_longer_than_one_portion_is_turned_to_its_end(name: str) -> None:
    num_blocks = VALUES_AT_ONCE // FORMAT_OF[name].block_size + 3
    raw = random_blocks(name, num_blocks, np.random.default_rng(2))
    expected = values_of(raw, name)
    np.testing.assert_array_equal(turned(raw, name, expected.shape), expected)


@pytest.mark.parametrize("name", FORMAT_OF)
def test_the_result_shares_no_memory_with_the_file(name: str) -> None:
    raw = np.zeros(FORMAT_OF[name].block_bytes * 4, np.uint8)
    values = to_float32(raw, name, (4 * FORMAT_OF[name].block_size,))
    before = values.copy()
    raw.fill(255)
    np.testing.assert_array_equal(values, before)


def test_names_and_sizes_of_formats_are_those_of_ggml() -> None:
    for code, number_format in FORMATS.items():
        kind = gguf.GGMLQuantizationType(code)
        assert number_format == (kind.name, *gguf.GGML_QUANT_SIZES[kind])
    for code, name in UNSUPPORTED.items():
        assert gguf.GGMLQuantizationType(code).name == name
    assert FORMATS.keys() | UNSUPPORTED.keys() >= {kind.value for kind in gguf.GGMLQuantizationType}
