"""What the planner remembers of a step until its result is there, and what a failed step spoils.

Results belong to chunks by their index in the step, never by seat: a seat may have a new tenant by then.
"""

import dataclasses
from collections.abc import Iterable

from limelight.actors.scheduling.page_pool import PagePool
from limelight.actors.scheduling.sequence import Sequence


@dataclasses.dataclass(slots=True, eq=False)
class PlannedChunk:
    """A sequence's share of a step.

    Attributes:
        epoch: of the sequence when the chunk was planned.
        pages: the sequence's page table at that time: the list itself, so it may have grown since.
        sample: whether it draws a token.
    """

    sequence: Sequence
    epoch: int
    pages: list[int]
    start: int
    num_tokens: int
    sample: bool = False

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


@dataclasses.dataclass(slots=True, eq=False)
class InFlightStep:
    """A step that has been planned and not answered."""

    number: int
    chunks: list[PlannedChunk]


def spoiled_by(
    failed: InFlightStep, later: Iterable[InFlightStep], pool: PagePool, page_size: int
) -> tuple[set[int], list[PlannedChunk]]:
    """What can't be trusted when `failed` has failed.

    A chunk of a later step is spoiled if its page table is one that a spoiled chunk wrote to, or holds a page that a
    spoiled chunk wrote; what it wrote is then spoiled as well. A page handed out again after the writing step is not:
    its new owner writes later.

    Args:
        later: the steps in flight after `failed`, in order.

    Returns:
        the pages that still hold spoiled keys and values, and the spoiled chunks of the later steps.
    """
    pages: set[int] = set()
    tables: set[int] = set()
    chunks: list[PlannedChunk] = []

    def spoil(chunk: PlannedChunk, number: int) -> None:
        tables.add(id(chunk.pages))
        pages.update(page for page in chunk.written_pages(page_size) if pool.allocated_at(page) <= number)

    for chunk in failed.chunks:
        spoil(chunk, failed.number)
    for step in later:
        for chunk in step.chunks:
            if id(chunk.pages) in tables or not pages.isdisjoint(chunk.read_pages(page_size)):
                spoil(chunk, step.number)
                chunks.append(chunk)
    return pages, chunks
