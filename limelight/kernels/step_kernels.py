"""What a pass over fixed buffers asks of kernels beside `Kernels`: the ends of a step, where host and seats meet.

Such kernels take a `RowBatch` for the `AttentionBatch` of `Kernels.plan` and `rotation`, and int32 rows and token ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard

from limelight.kernels.interface import Kernels

if TYPE_CHECKING:
    from torch import Tensor

    from limelight.kernels.triton.step_memory import DrawBatch, DrawnWords, RowBatch, SeatWords, StepWords


class StepKernels(Kernels, Protocol):
    """Kernels whose passes can be captured: nothing waits for the device, and no shape depends on data."""

    def patch_seats(self, step: StepWords, seats: SeatWords) -> None:
        """Write the step's patches into the table of seats."""
        ...

    def prepare(self, batch: RowBatch, page_size: int) -> None:
        """Fill `context_lens`, `token_ids`, `positions` and `slots` of a batch, to the end of each."""
        ...

    def draw(self, logits: Tensor, batch: DrawBatch, drawn: DrawnWords) -> None:
        """Draw a token for each sampled row of `logits` [batch.num_sampled, vocab] float32, which stay as they are.

        Writes `token_ids`, `best_logits` and `best_scores`. What is drawn is as in `Kernels.sample`; tokens that a
        row's mask does not allow are blocked. A row without a token to draw gets one of the vocabulary.
        """
        ...

    def finish(self, batch: DrawBatch, drawn: DrawnWords) -> None:
        """Write `num_accepted`, the last tokens of the seats that draw, and count what counts for their penalties."""
        ...


def has_passes(kernels: Kernels) -> TypeGuard[StepKernels]:
    """Whether passes of these kernels can be captured."""
    return hasattr(kernels, "patch_seats")
