"""Drawing in C against the reference: the same tokens for the same logits, settings, seeds and positions."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limelight.kernels.cpu import sampling
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Recorder, bound
from limelight.kernels.cpu.sampling import SampledBuffers, SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers, StepLimits
from limelight.kernels.cpu.threads import ThreadPool
from limelight.kernels.interface import SampledTokens
from limelight.kernels.reference_sampling import sample
from limelight.models.recorded_sampling import RecordedSamplingSeats
from limelight.models.sampling_seats import SamplingSeats
from limelight.step import SeatSampling, SeatTaken

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SLICE = 16384
"""Of the vocabulary: `csrc/sampling.h`."""


class Row(NamedTuple):
    """A row that draws: the position of its token, settings, and the tokens that penalties begin with."""

    position: int
    sampling: SeatSampling
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()

    def taken(self, seat: int) -> SeatTaken:
        return SeatTaken(
            seat=seat,
            sampling=self.sampling,
            num_prompt_tokens=len(self.prompt),
            prompt_token_ids=self.prompt,
            output_token_ids=self.output,
        )


Allowed = dict[int, NDArray[np.bool_]]
"""Tokens that rows may draw, by row; others may draw all."""


def bits(tokens: NDArray[np.bool_]) -> bytes:
    """A mask as executors get it; what is set behind the vocabulary means nothing."""
    padded = np.ones(-(-len(tokens) // 32) * 32, np.bool_)
    padded[: len(tokens)] = tokens
    return np.packbits(padded, bitorder="little").tobytes()


class Drawer:
    """A recorded pass that does nothing but draw; row i is seat i."""

    def __init__(self, library: Library, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        num_rows, vocab_size = logits.shape
        self.step = StepBuffers(
            StepLimits(num_tokens=num_rows, num_seats=num_rows, num_sampled=num_rows, max_pages=1, page_size=8)
        )
        self.step.counts[2] = num_rows
        self.step.sample_seats[:] = np.arange(num_rows)
        self.step.sample_positions[:] = [row.position for row in rows]
        self.buffers = SamplingBuffers(self.step, vocab_size)
        self.seats = RecordedSamplingSeats(self.buffers)
        for seat, row in enumerate(rows):
            self.seats.take(row.taken(seat))
        self.logits = logits.copy()
        recorder = Recorder(library)
        self.sampled = sampling.sample(recorder, bound(self.step.sampled, self.logits), self.buffers)
        self.program, _ = recorder.finish()

    def allow(self, allowed: Allowed) -> None:
        for row, tokens in allowed.items():
            self.buffers.allow(row, 1, bits(tokens))

    def run(self, pool: ThreadPool | None = None) -> SampledBuffers:
        self.program.run(pool)
        return self.sampled


def reference(logits: NDArray[np.float32], rows: Sequence[Row], allowed: Allowed | None = None) -> SampledTokens:
    seats = SamplingSeats(len(rows), logits.shape[1], "cpu")
    for seat, row in enumerate(rows):
        seats.take(row.taken(seat))
    batch = seats.gather(list(range(len(rows))), [row.position for row in rows])
    if allowed is not None:
        masks = torch.ones(logits.shape, dtype=torch.bool)
        for number, tokens in allowed.items():
            masks[number] = torch.from_numpy(tokens)
        batch = msgspec.structs.replace(batch, allowed=masks)
    return sample(torch.tensor(logits), batch)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)


def assert_same_tokens(
    library: Library, logits: NDArray[np.float32], rows: Sequence[Row], allowed: Allowed | None = None
) -> None:
    expected = reference(logits, rows, allowed)
    drawer = Drawer(library, logits, rows)
    drawer.allow(allowed or {})
    sampled = drawer.run()
    different = np.flatnonzero(sampled.token_ids != expected.token_ids.numpy())
    assert not different.size, [(rows[row], sampled.token_ids[row], expected.token_ids[row]) for row in different[:3]]
    np.testing.assert_array_equal(sampled.best_logits, torch.tensor(logits).amax(-1).numpy())
    if expected.best_scores is not None:
        np.testing.assert_array_equal(sampled.best_scores, expected.best_scores.numpy())
    with np.errstate(invalid="ignore"):
        exact = logits - np.logaddexp.reduce(logits.astype(np.float64), axis=1, keepdims=True)
    for index, row in enumerate(rows):
        if row.sampling.num_logprobs is None:
            continue
        wanted = min(row.sampling.num_logprobs, logits.shape[1])
        best = np.lexsort((np.arange(logits.shape[1]), -logits[index]))[:wanted]
        np.testing.assert_array_equal(sampled.top_token_ids[index, :wanted], best)
        np.testing.assert_allclose(sampled.top_logprobs[index, :wanted], exact[index, best], rtol=1e-6, atol=2e-6)
        drawn = exact[index, sampled.token_ids[index]]
        np.testing.assert_allclose(sampled.logprobs[index], drawn, rtol=1e-6, atol=2e-6)


def random_rows(count: int, vocab_size: int, seed: int) -> list[Row]:
    generator = np.random.default_rng(seed)

    def one_of(*values: float) -> float:
        return float(generator.choice(values))

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(generator.integers(0, vocab_size, generator.integers(0, most + 1)).tolist())

    rows = []
    for _ in range(count):
        penalised = generator.random() < 0.3
        sampling = SeatSampling(
            temperature=one_of(0.0, 0.01, 0.4, 1.0, 1.0, 2.0),
            top_p=one_of(1.0, 1.0, 0.9, 0.5, 0.99999, 1e-6),
            top_k=int(one_of(0, 0, 1, 2, 50, 1000, vocab_size, 2 * vocab_size)),
            min_p=one_of(0.0, 0.0, 0.05, 1.0),
            repetition_penalty=one_of(1.0, 1.3, 0.5, 1e6) if penalised else 1.0,
            presence_penalty=one_of(0.0, -2.0, 1.5) if penalised else 0.0,
            frequency_penalty=one_of(0.0, -0.5, 2.0) if penalised else 0.0,
            seed=int(generator.integers(-(2**63), 2**63 - 1)),
            num_logprobs=(None, 0, 3, 20)[generator.integers(4)],
            logit_bias={token: one_of(-100, 100, 1, -0.5) for token in (*tokens(5), vocab_size, vocab_size + 9)}
            if generator.random() < 0.3
            else None,
            blocked_token_ids=(*tokens(4), vocab_size) if generator.random() < 0.3 else (),
            blocked_below_position=int(one_of(0, 500, 10_000)),
        )
        rows.append(Row(int(generator.integers(0, 1000)), sampling, tokens(30), tokens(30)))
    return rows


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 24, 63, 64, 65, 129, 1000, 4097])
@pytest.mark.parametrize("scale", [0.3, 3.0, 15.0])
def test_tokens_are_the_references_whatever_the_settings(library: Library, vocab_size: int, scale: float) -> None:
    logits = normal(150, vocab_size, seed=vocab_size, scale=scale)
    assert_same_tokens(library, logits, random_rows(150, vocab_size, seed=vocab_size + int(scale)))


@pytest.mark.parametrize("vocab_size", [SLICE, SLICE + 1, 49_152, 262_144])
def test_rows_of_several_slices_draw_as_one(library: Library, vocab_size: int) -> None:
    count = 2_000_000 // vocab_size
    logits = normal(count, vocab_size, seed=1, scale=4.0)
    assert_same_tokens(library, logits, random_rows(count, vocab_size, seed=2))


def random_masks(count: int, vocab_size: int, seed: int) -> Allowed:
    """Of three in four rows: of nothing, one token, few, half, most and all tokens."""
    generator = np.random.default_rng(seed)
    allowed: Allowed = {}
    for row in range(count):
        share = generator.choice([0.0, 0.0, 0.001, 0.1, 0.5, 0.99, 1.0])
        tokens = generator.random(vocab_size) < share
        if generator.random() < 0.7:
            tokens[generator.integers(vocab_size)] = True
        if generator.random() < 0.75:
            allowed[row] = tokens
    return allowed


@pytest.mark.parametrize("vocab_size", [1, 7, 31, 32, 33, 97, 1000, 4097])
@pytest.mark.parametrize("scale", [0.3, 8.0])
def test_masked_rows_draw_what_the_references_do(library: Library, vocab_size: int, scale: float) -> None:
    logits, rows = normal(150, vocab_size, seed=vocab_size, scale=scale), random_rows(150, vocab_size, seed=vocab_size)
    allowed = random_masks(150, vocab_size, seed=vocab_size)
    assert_same_tokens(library, logits, rows, allowed)


@pytest.mark.parametrize("vocab_size", [SLICE, SLICE + 1, 49_152, 151_936])
def test_masked_rows_of_several_slices_draw_as_one(library: Library, vocab_size: int) -> None:
    count = 1_500_000 // vocab_size
    logits, allowed = normal(count, vocab_size, seed=3, scale=4.0), random_masks(count, vocab_size, seed=4)
    assert_same_tokens(library, logits, random_rows(count, vocab_size, seed=5), allowed)


def test_rows_without_masks_draw_the_same_beside_masked_ones_and_after_them(library: Library) -> None:
    rows = [row._replace(output=()) for row in random_rows(60, 500, seed=16)]
    logits, allowed = normal(60, 500, seed=17, scale=2.0), random_masks(60, 500, seed=18)
    free = [number for number in range(60) if number not in allowed]
    alone = Drawer(library, logits, rows).run()
    drawer = Drawer(library, logits, rows)
    drawer.allow(allowed)
    beside = drawer.run()
    for ours, expected in ((beside.token_ids, alone.token_ids), (beside.best_scores, alone.best_scores)):
        np.testing.assert_array_equal(ours[free], expected[free])
    assert (beside.token_ids != alone.token_ids).any()
    drawer.buffers.allow_all()
    for seat, row in enumerate(rows):
        drawer.seats.take(row.taken(seat))
    np.testing.assert_array_equal(drawer.run().token_ids, alone.token_ids)


def test_masks_of_several_rows_lie_one_after_the_other(library: Library) -> None:
    logits = np.zeros((3, 40), np.float32)
    drawer = Drawer(library, logits, [Row(0, SeatSampling(temperature=0.0))] * 3)
    drawer.buffers.allow(1, 2, bits(np.arange(40) == 39) + bits(np.arange(40) > 30))
    assert drawer.run().token_ids.tolist() == [0, 39, 31]


def test_noise_is_the_references(library: Library) -> None:
    generator = np.random.default_rng(15)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), *generator.integers(-(2**63), 2**63 - 1, 195).tolist()]
    rows = [Row(position, SeatSampling(temperature=1.0, seed=seed)) for position, seed in enumerate(seeds)]
    # Of few tokens the best noise may be anything, of many it is always large.
    assert_same_tokens(library, np.zeros((200, 3), np.float32), rows)
    assert_same_tokens(library, np.zeros((200, 5000), np.float32), rows)


def test_equal_logits_are_kept_by_cuts_and_the_first_one_is_best(library: Library) -> None:
    logits = np.round(normal(300, 500, seed=3, scale=1.5))
    assert_same_tokens(library, logits, random_rows(300, 500, seed=4))


def test_logits_that_are_not_finite(library: Library) -> None:
    generator = np.random.default_rng(5)
    logits = normal(200, 100, seed=5, scale=3.0)
    logits[generator.random(logits.shape) < 0.5] = -np.inf
    logits[:20] = -np.inf
    logits[20:40, 17] = np.inf
    logits[30:40, 60] = np.inf
    logits[40:60] *= 1e37
    rows = [row._replace(sampling=without_logprobs(row.sampling)) for row in random_rows(200, 100, seed=6)]
    assert_same_tokens(library, logits, rows)


def without_logprobs(sampling: SeatSampling) -> SeatSampling:
    return SeatSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )


def test_a_row_with_something_that_is_not_a_number_says_so_and_draws_it(library: Library) -> None:
    logits = normal(60, SLICE + 100, seed=7)
    logits[:30, 5], logits[30:, SLICE + 50], logits[:, SLICE + 60] = np.nan, np.nan, np.nan
    rows = [row._replace(sampling=without_logprobs(row.sampling)) for row in random_rows(60, SLICE + 100, seed=8)]
    sampled = Drawer(library, logits, rows).run()
    assert np.isnan(sampled.best_logits).all()
    assert sampled.token_ids.tolist() == [5] * 30 + [SLICE + 50] * 30


def test_a_row_whose_tokens_are_all_blocked_draws_token_0(library: Library) -> None:
    everything = tuple(range(24))
    rows = [
        Row(3, SeatSampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=9,
                            blocked_token_ids=everything, blocked_below_position=below))
        for temperature in (0.0, 1.0)
        for top_p, top_k, min_p in ((1.0, 0, 0.0), (0.5, 3, 0.1), (0.5, 0, 0.0))
        for below in (3, 4)
    ]  # fmt: skip
    logits = np.tile(normal(24, seed=1), (len(rows), 1))
    assert_same_tokens(library, logits, rows)
    tokens = Drawer(library, logits, rows).run().token_ids
    assert tokens[1::2].tolist() == [0] * 6
    assert tokens[0] == logits[0].argmax()


def test_drawn_tokens_are_counted_for_the_next_step(library: Library) -> None:
    rows = random_rows(40, 300, seed=10)
    logits = normal(40, 300, seed=11, scale=2.0)
    drawer = Drawer(library, logits, rows)
    seats = SamplingSeats(len(rows), 300, "cpu")
    numbers = list(range(len(rows)))
    for seat, row in enumerate(rows):
        seats.take(row.taken(seat))
    for position in range(30):
        expected = sample(torch.tensor(logits), seats.gather(numbers, [position] * len(rows))).token_ids
        seats.count_drawn(numbers, expected)
        drawer.step.sample_positions[:] = position
        assert drawer.run().token_ids.tolist() == expected.tolist()


def test_a_seat_draws_for_several_positions_in_one_step_as_it_does_one_by_one(library: Library) -> None:
    plain = SeatSampling(temperature=1.0, top_p=0.9, seed=77, num_logprobs=2)
    logits = normal(6, 1000, seed=12, scale=3.0)
    alone = [Drawer(library, logits[i : i + 1], [Row(10 + i, plain)]).run() for i in range(6)]
    drawer = Drawer(library, logits, [Row(10 + i, plain) for i in range(6)])
    for other in range(1, 6):
        drawer.seats.release(other)
    drawer.step.sample_seats[:] = 0
    together = drawer.run()
    assert together.token_ids.tolist() == [sampled.token_ids[0] for sampled in alone]
    np.testing.assert_array_equal(together.logprobs, np.concatenate([sampled.logprobs for sampled in alone]))


def test_threads_that_share_rows_draw_what_one_does(library: Library, pool: ThreadPool) -> None:
    vocab_size = 2 * SLICE + 500
    rows = random_rows(24, vocab_size, seed=13)
    logits = normal(24, vocab_size, seed=14, scale=3.0)
    alone = Drawer(library, logits, rows).run()
    together = Drawer(library, logits, rows)
    for _ in range(3):
        for seat, row in enumerate(rows):
            together.seats.take(row.taken(seat))
        shared = together.run(pool)
        assert shared.token_ids.tolist() == alone.token_ids.tolist()
        np.testing.assert_array_equal(shared.logprobs, alone.logprobs)
        np.testing.assert_array_equal(shared.top_logprobs, alone.top_logprobs)


@settings(max_examples=60)
@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, 2.0000002, -1.0, 30.0, -30.0]), min_size=1, max_size=90),
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 1.3]),
    top_p=st.sampled_from([1.0, 0.999, 0.6, 0.31, 0.01]),
    top_k=st.integers(0, 95),
    min_p=st.sampled_from([0.0, 1e-9, 0.04, 0.31, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**40),
)
def test_nearly_equal_logits_are_cut_as_the_reference_cuts_them(
    library: Library,
    values: list[float],
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    seed: int,
    position: int,
) -> None:
    sampling = SeatSampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    assert_same_tokens(library, np.array([values], np.float32), [Row(position, sampling)])
