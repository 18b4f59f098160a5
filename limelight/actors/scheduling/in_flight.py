"""What the planner remembers of a step until its result is there, and what a failed step spoils.

Results belong to chunks by their index in the step, never by seat: a seat may have a new tenant by then.
"""

from collections.abc import Iterable

import msgspec

from limelight.actors.scheduling.page_pool import PagePool
from limelight.actors.scheduling.sequence import Sequence


class PlannedChunk(msgspec.Struct, eq=False):
    """A sequence's share of a step.

    Attributes:
        epoch: of the sequence when the chunk was planned.
        pages: the sequence's page table at that time: the list itself, so it may have grown since.
        sample: whether it draws a token.
        drafts: guesses that follow the known tokens; part of `num_tokens`.
        reports: whether it has a readout.
    """

    sequence: Sequence
    epoch: int
    pages: list[int]
    start: int
    num_tokens: int
    sample: bool = False
    drafts: tuple[int, ...] = ()
    reports: bool = False

    @property
    def stale(self) -> bool:
        """Whether the sequence has ended or been reset since, so that the result must be dropped."""
        return self.epoch != self.sequence.epoch

    def written_pages(self, page_size: int) -> list[int]:
        """Pages that the chunk writes to."""
        return self.pages[self.start // page_size : -(-(self.start + self.num_tokens) // page_size)]

    def read_pages(self, page_size: int) -> list[int]:
        """Pages that the chunk reads, those that it writes included."""
        return self.pages[: -(-(self.start + self.num_tokens) // page_size)]


class InFlightStep(msgspec.Struct, eq=False):
    """A step that has been planned and not answered.

    Attributes:
        charged: whether shares have been charged for it.
    """

    number: int
    chunks: list[PlannedChunk]
    charged: bool = False


def spoiled_by(failed: InFlightStep, later: Iterable[InFlightStep], pool: PagePool, page_size: int) -> set[int]:
    """Pages that hold keys and values which can't be trusted when `failed` has failed.

    What the failed step wrote is spoiled, and what a later step in flight wrote in a chunk that reads a spoiled page. A
    page handed out again after the step that spoiled it is not: its new owner writes later.

    With two steps in flight, a chunk of the later one is in the last step planned. So its sequence either has ended or
    been reset, or still holds every page that the chunk reads: whoever must start again is found by its pages.

    Args:
        later: the steps in flight after `failed`, in order.
    """
    pages: set[int] = set()
    for step in (failed, *later):
        for chunk in step.chunks:
            if step is failed or not pages.isdisjoint(chunk.read_pages(page_size)):
                pages.update(page for page in chunk.written_pages(page_size) if pool.allocated_at(page) <= step.number)
    return pages
