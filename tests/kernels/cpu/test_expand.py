"""Rows of a step are derived from its chunks as the eager batch derives them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.kernels.cpu.expand import expand
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Recorder
from limelight.kernels.cpu.step_buffers import NUM_COLUMNS, StepBuffers, StepLimits
from limelight.kernels.reference import ReferenceKernels
from limelight.models.forward_tensors import build_forward_batch
from limelight.models.seats import Seats
from limelight.step import Chunk
from tests.kernels.cpu import libraries

LIMITS = StepLimits(num_tokens=48, num_seats=6, num_sampled=20, max_pages=8, page_size=8)
LIBRARY = libraries.load(libraries.VARIANTS[-1])


@st.composite
def steps(draw: st.DrawFn) -> tuple[Chunk, ...]:
    """Chunks in any order of seats, decode and prefill mixed, with guesses."""
    chunks = []
    for seat in draw(st.lists(st.integers(0, LIMITS.num_seats - 1), min_size=1, unique=True)):
        start, num_tokens = draw(st.integers(0, 56)), draw(st.integers(1, 8))
        sample = draw(st.booleans())
        decode = num_tokens == 1 and sample and draw(st.booleans())
        chunks.append(
            Chunk(
                seat=seat,
                start=start,
                num_tokens=num_tokens,
                token_ids=None if decode else tuple(draw(st.integers(0, 90)) for _ in range(num_tokens)),
                new_pages=tuple(draw(st.integers(0, 99)) for _ in range(LIMITS.max_pages)),
                sample=sample,
                num_drafts=draw(st.integers(0, min(2, num_tokens - 1))) if sample else 0,
            )
        )
    return tuple(chunks)


@given(steps())
@settings(max_examples=60)
def test_rows_are_those_of_the_eager_batch(chunks: tuple[Chunk, ...]) -> None:
    seats = Seats(LIMITS.num_seats, LIMITS.max_pages, LIMITS.page_size, "cpu")
    seats.last_tokens.copy_(torch.arange(100, 100 + LIMITS.num_seats))
    seats.append_pages(chunks)
    eager = build_forward_batch(chunks, seats, LIMITS.page_size, ReferenceKernels("cpu"), {})
    buffers = expanded(LIBRARY, chunks, seats)
    num_rows, num_chunks, num_sampled = buffers.counts
    rows = np.arange(num_rows) if eager.sample_rows is None else eager.sample_rows.numpy()
    attention = eager.attention
    expected = {
        "token_ids": eager.token_ids,
        "positions": attention.positions,
        "slots": attention.slots,
        "query_starts": attention.query_starts,
        "context_lens": attention.context_lens,
        "chunk_seats": [chunk.seat for chunk in chunks],
        "sample_rows": rows,
        "sample_positions": attention.positions.numpy()[rows] + 1,
        "sample_seats": [chunk.seat for chunk in chunks for _ in range(num_sampled_of(chunk))],
    }
    sizes = {"query_starts": num_chunks + 1, "context_lens": num_chunks, "chunk_seats": num_chunks}
    for name, values in expected.items():
        size = num_sampled if name.startswith("sample_") else sizes.get(name, num_rows)
        np.testing.assert_array_equal(getattr(buffers, name)[:size], np.asarray(values), err_msg=name)


def test_a_step_without_rows_leaves_everything_alone(library: Library) -> None:
    seats = Seats(LIMITS.num_seats, LIMITS.max_pages, LIMITS.page_size, "cpu")
    buffers = expanded(library, (), seats)
    assert not buffers.query_starts.any()


def num_sampled_of(chunk: Chunk) -> int:
    return chunk.num_drafts + 1 if chunk.sample else 0


def expanded(library: Library, chunks: tuple[Chunk, ...], seats: Seats) -> StepBuffers:
    buffers = StepBuffers(LIMITS)
    recorder = Recorder(library)
    expand(recorder, buffers)
    program, _ = recorder.finish()
    buffers.page_table[:] = seats.page_table.numpy()
    buffers.last_tokens[:] = seats.last_tokens.numpy()
    row = 0
    for index, chunk in enumerate(chunks):
        numbers = (chunk.seat, chunk.start, chunk.num_tokens, chunk.token_ids is not None, num_sampled_of(chunk))
        assert len(numbers) == NUM_COLUMNS
        buffers.chunks[index] = numbers
        if chunk.token_ids is not None:
            buffers.given_tokens[row : row + chunk.num_tokens] = chunk.token_ids
        row += chunk.num_tokens
    buffers.counts[:] = row, len(chunks), sum(map(num_sampled_of, chunks))
    program.run()
    return buffers
