"""A whole step as one program: from the chunks that it brings to the tokens that it draws."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.attention import KVPool
from limelight.kernels.cpu.expand import expand
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.recorder import Program, bound
from limelight.kernels.cpu.sampling import SampledBuffers, SamplingBuffers
from limelight.kernels.cpu.step_buffers import StepBuffers
from limelight.kernels.interface import Rows
from limelight.models.forward_batch import ForwardBatch
from limelight.models.layers import ProjectionShape
from limelight.models.lora.recorded_adapters import RecordedAdapters


class RecordableModel(Protocol):
    """A decoder, with its weights, whose pass can be recorded.

    Attributes:
        adaptable: the projections that adapters can change.
    """

    adaptable: tuple[ProjectionShape, ...]

    def forward(self, batch: ForwardBatch, kv: Any) -> Rows:
        """Record the pass; logits [sampled, vocab] float32."""
        ...


class RecordedPass(NamedTuple):
    """A pass as it is replayed, and where it leaves what it draws. The program's second part draws, the first does the
    rest: masks may come between the two.
    """

    program: Program
    sampled: SampledBuffers


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


def record_operations(
    model: RecordableModel,
    kernels: CpuKernels,
    kv: KVPool,
    buffers: StepBuffers,
    sampling: SamplingBuffers,
    adapters: RecordedAdapters | None,
) -> SampledBuffers:
    """Record them into the running recording; where the step leaves what it draws."""
    batch = ForwardBatch(
        token_ids=bound(buffers.tokens, buffers.token_ids),
        attention=buffers,
        sample_rows=bound(buffers.sampled, buffers.sample_rows),
        adapters=None if adapters is None else adapters.all_rows,
        sampled_adapters=None if adapters is None else adapters.sampled_rows,
    )
    expand(kernels.recorder, buffers)
    logits = model.forward(batch, kv)
    kernels.recorder.split()
    return kernels.sample(logits, sampling)
