"""A whole step as one program: from the chunks that it brings to the tokens that it draws."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.attention import KVPool
from limelight.kernels.cpu.expand import expand
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.recorder import Program, bound
from limelight.kernels.cpu.sampling import SampledBuffers, SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers
from limelight.models.forward_batch import ForwardBatch, Model
from limelight.models.layers import ProjectionShape
from limelight.models.lora.recorded_adapters import RecordedAdapters
from limelight.models.recorded_readouts import KeptRows, RowReader


class RecordableModel(Model, Protocol):
    """A decoder, with its weights, whose pass can be recorded.

    Attributes:
        adaptable: the projections that adapters can change.
    """

    adaptable: tuple[ProjectionShape, ...]


class RecordedPass(NamedTuple):
    """A pass as it is replayed, where it leaves what it draws, and what reads its rows, if they are kept. The program's
    second part draws, the first does the rest: masks may come between the two.
    """

    program: Program
    sampled: SampledBuffers
    reader: RowReader | None = None


def record_pass(
    model: RecordableModel,
    kernels: CpuKernels,
    kv: KVPool,
    buffers: StepBuffers,
    sampling: SamplingBuffers,
    adapters: RecordedAdapters | None,
    memory: NDArray[np.uint8] | None = None,
) -> RecordedPass:
    """Record a whole step, from its chunks to its tokens, with a place for adapters or without.

    Args:
        memory: as in `Recorder.finish`.

    Raises:
        MemoryError: there is not enough for the values of the step.
    """
    with kernels.recording() as recorder:
        sampled = record_operations(model, kernels, kv, buffers, sampling, adapters)
        program, _ = recorder.finish(memory)
    return RecordedPass(program, sampled)


def record_readable_pass(
    model: RecordableModel,
    kernels: CpuKernels,
    kv: KVPool,
    buffers: StepBuffers,
    sampling: SamplingBuffers,
    adapters: RecordedAdapters | None,
    memory: NDArray[np.uint8],
) -> RecordedPass:
    """The same, to the same bits, with a reader of what the layers give."""
    with kernels.recording() as recorder:
        batch = _batch(buffers, adapters)
        expand(kernels.recorder, buffers)
        hidden, residual = model.body(batch, kv)
        normed = model.normed(hidden, residual, batch.sample_rows)
        logits = model.project(normed, batch.sampled_adapters)
        kernels.recorder.split()
        sampled = kernels.sample(logits, sampling)
        kept = KeptRows(hidden, residual)
        program, _ = recorder.finish(memory)
    return RecordedPass(program, sampled, RowReader(model, kernels, kept, adapters, sampling.vocab_size))


def record_operations(
    model: RecordableModel,
    kernels: CpuKernels,
    kv: KVPool,
    buffers: StepBuffers,
    sampling: SamplingBuffers,
    adapters: RecordedAdapters | None,
) -> SampledBuffers:
    """Record them into the running recording; where the step leaves what it draws."""
    expand(kernels.recorder, buffers)
    logits = model.forward(_batch(buffers, adapters), kv)
    kernels.recorder.split()
    return kernels.sample(logits, sampling)


def _batch(buffers: StepBuffers, adapters: RecordedAdapters | None) -> ForwardBatch:
    return ForwardBatch(
        token_ids=bound(buffers.tokens, buffers.token_ids),
        attention=buffers,
        sample_rows=bound(buffers.sampled, buffers.sample_rows),
        adapters=None if adapters is None else adapters.all_rows,
        sampled_adapters=None if adapters is None else adapters.sampled_rows,
    )
