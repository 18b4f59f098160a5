"""Tests of the choice of experts in C."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limelight.kernels.cpu.experts import route
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Recorder, Value
from tests.kernels.cpu.recorded import row_count, run_recorded

Routed = tuple[NDArray[np.int32], NDArray[np.float32]]


def routed(
    library: Library,
    scores: NDArray[np.float32],
    num_chosen: int,
    *,
    chosen_first: bool = False,
    normalize: bool = False,
) -> Routed:
    def record(recorder: Recorder) -> list[Value]:
        rows = row_count(len(scores), largest=len(scores))
        value = Value(rows, scores.shape[1], scores.dtype, scores)
        return list(route(recorder, value, num_chosen, chosen_first=chosen_first, normalize=normalize))

    chosen, shares = run_recorded(library, record)
    return chosen, shares


def expected(scores: NDArray[np.float32], num_chosen: int, *, chosen_first: bool, normalize: bool) -> Routed:
    exact = torch.from_numpy(scores).double()
    if not chosen_first:
        exact = exact.softmax(-1)
    shares, chosen = exact.sort(dim=-1, descending=True, stable=True)
    shares, chosen = shares[:, :num_chosen], chosen[:, :num_chosen]
    if chosen_first:
        shares = shares.softmax(-1)
    if normalize:
        shares = shares / shares.sum(-1, keepdim=True)
    return chosen.numpy().astype(np.int32), shares.numpy().astype(np.float32)


@settings(max_examples=60)
@given(
    num_rows=st.integers(1, 70),
    num_experts=st.integers(1, 128),
    num_chosen=st.integers(1, 128),
    chosen_first=st.booleans(),
    normalize=st.booleans(),
    spread=st.sampled_from([0.1, 3.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_the_largest_shares_are_chosen(
    library: Library,
    num_rows: int,
    num_experts: int,
    num_chosen: int,
    chosen_first: bool,
    normalize: bool,
    spread: float,
    seed: int,
) -> None:
    """Scores are well apart, so that rounding decides nothing, and probabilities far from the smallest floats."""
    generator = np.random.default_rng(seed)
    apart = np.tile(np.linspace(-spread, spread, num_experts, dtype=np.float32), (num_rows, 1))
    scores = generator.permuted(apart, axis=1)
    num_chosen = min(num_chosen, num_experts)
    chosen, shares = routed(library, scores, num_chosen, chosen_first=chosen_first, normalize=normalize)
    right, right_shares = expected(scores, num_chosen, chosen_first=chosen_first, normalize=normalize)
    np.testing.assert_array_equal(chosen, right)
    np.testing.assert_allclose(shares, right_shares, rtol=2e-5)


@pytest.mark.parametrize("chosen_first", [False, True])
def test_of_equal_ones_the_first_comes_first(library: Library, chosen_first: bool) -> None:
    scores = np.array([[1, 2, 2, 1, 2], [0, 0, 0, 0, 0]], np.float32)
    chosen, shares = routed(library, scores, 4, chosen_first=chosen_first)
    np.testing.assert_array_equal(chosen, [[1, 2, 4, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(shares[1], np.float32([0.25 if chosen_first else 0.2] * 4))


def test_probabilities_are_compared_and_not_scores(library: Library) -> None:
    """Scores so far below the largest that their probabilities are 0, all of them equal."""
    scores = np.array([[-300, -200, 0, -100]], np.float32)
    assert routed(library, scores, 3)[0].tolist() == [[2, 0, 1]]
    assert routed(library, scores, 3, chosen_first=True)[0].tolist() == [[2, 3, 1]]


@pytest.mark.parametrize("chosen_first", [False, True])
def test_what_is_not_a_number_stays_within_its_row(library: Library, chosen_first: bool) -> None:
    scores = np.random.default_rng(0).standard_normal((3, 9)).astype(np.float32)
    sound = routed(library, scores[[0, 2]], 4, chosen_first=chosen_first, normalize=True)
    for place in (0, 5):
        broken = scores.copy()
        broken[1, place] = np.nan
        chosen, shares = routed(library, broken, 4, chosen_first=chosen_first, normalize=True)
        np.testing.assert_array_equal(chosen[[0, 2]], sound[0])
        np.testing.assert_array_equal(shares[[0, 2]], sound[1])
        assert len(set(chosen[1].tolist())) == 4
        assert set(chosen[1].tolist()) <= set(range(9))


def test_a_row_gets_the_same_bits_alone_and_in_a_batch(library: Library) -> None:
    scores = np.random.default_rng(1).standard_normal((70, 61)).astype(np.float32)
    together = routed(library, scores, 6, normalize=True)
    for row in (0, 3, 4, 69):
        alone = routed(library, scores[row : row + 1], 6, normalize=True)
        np.testing.assert_array_equal(alone[0][0], together[0][row])
        np.testing.assert_array_equal(alone[1][0], together[1][row])
