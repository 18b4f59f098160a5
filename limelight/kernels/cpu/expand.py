"""The first operation of a recorded pass: what a step's chunks say of each of its rows."""

from limelight.kernels.cpu.library import Function
from limelight.kernels.cpu.recorder import Recorder
from limelight.kernels.cpu.step_buffers import StepBuffers

EXPAND = Function("record_expand", "p" * 15 + "ii")


def expand(recorder: Recorder, buffers: StepBuffers) -> None:
    """Record deriving what `StepBuffers` calls derived."""
    recorder.append(
        EXPAND,
        buffers.counts,
        buffers.chunks,
        buffers.given_tokens,
        buffers.page_table,
        buffers.last_tokens,
        buffers.token_ids,
        buffers.positions,
        buffers.slots,
        buffers.query_starts,
        buffers.chunk_seats,
        buffers.context_lens,
        buffers.sample_rows,
        buffers.sample_seats,
        buffers.sample_positions,
        buffers.limits.max_pages,
        buffers.limits.page_size,
    )
