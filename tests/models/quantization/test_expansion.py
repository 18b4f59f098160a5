"""Packed integers against long numbers cut into words, and how much of a weight is in the works at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.models.quantization.expansion import BLOCK_VALUES, expand_rows, packed_words, unpack
from tests.models.quantization.quantized_models import pack_rows

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@settings(max_examples=50)
@given(bits=st.integers(1, 8), rows=st.integers(1, 3), groups=st.integers(1, 3), seed=st.integers(0, 99))
def test_unpacked_integers_are_those_that_were_packed(bits: int, rows: int, groups: int, seed: int) -> None:
    values = torch.randint(0, 2**bits, (rows, 32 * groups), generator=torch.Generator().manual_seed(seed))
    words = pack_rows(values, bits)
    assert words.shape == (rows, packed_words(32 * groups, bits))
    assert torch.equal(unpack(words, bits).to(torch.int64), values)


def test_blocks_have_a_bounded_size_and_cover_every_row_once() -> None:
    outputs, inputs = 1000, 2**14
    seen: list[tuple[int, int]] = []

    def levels(start: int, stop: int) -> torch.Tensor:
        seen.append((start, stop))
        return torch.arange(start, stop).reshape(-1, 1).expand(stop - start, inputs)

    weight = expand_rows((outputs, inputs), levels, torch.full((outputs, 1), 2.0), torch.ones(outputs, 1), inputs)
    assert [start for start, _ in seen] == [0, *(stop for _, stop in seen[:-1])]
    assert seen[-1][1] == outputs
    assert all((stop - start) * inputs <= BLOCK_VALUES for start, stop in seen)
    assert torch.equal(weight[:, -1], (torch.arange(1000.0) - 1) * 2)
