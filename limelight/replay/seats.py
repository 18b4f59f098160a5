"""The sequences of a replay on an executor's seats and pages: who sits where, and how far it is computed."""

import dataclasses
from collections.abc import Iterable

from limelight.errors import OutOfMemory
from limelight.step import Capacity, SeatSampling, SeatTaken

Name = tuple[int, int]
"""`Row.request` and `Row.choice`."""


@dataclasses.dataclass(slots=True, eq=False)
class Resident:
    """A sequence that has a seat.

    Attributes:
        num_computed: leading tokens whose keys and values are there.
        drawn_at: position of the token that was drawn last for this seat, and lies there; None: none.
    """

    seat: int
    pages: list[int] = dataclasses.field(default_factory=list)
    num_computed: int = 0
    drawn_at: int | None = None


class Seats:
    """Hands out seats and pages, and takes them from sequences that are not needed now."""

    def __init__(self, capacity: Capacity) -> None:
        self._page_size = capacity.page_size
        self._free_seats = list(range(capacity.num_seats))
        self._free_pages = list(range(capacity.num_pages))
        self.residents: dict[Name, Resident] = {}
        self.taken: list[SeatTaken] = []
        self.released: list[int] = []

    def sit(self, name: Name, taken: "TakenFor", needed: Iterable[Name]) -> Resident:
        """The seat of `name`, its own or a fresh one.

        Args:
            needed: those who must keep theirs.

        Raises:
            OutOfMemory: there is none.
        """
        resident = self.residents.get(name)
        if resident is None:
            if not self._free_seats and not self._evict(needed):
                raise OutOfMemory("this replay needs more seats than the model has; give a larger --max-num-seqs")
            resident = self.residents[name] = Resident(self._free_seats.pop(0))
            self.taken.append(taken.seat_taken(resident.seat))
        return resident

    def extend(self, resident: Resident, end: int, needed: Iterable[Name]) -> tuple[int, ...]:
        """The pages that `resident` gets so that it has room for `end` tokens.

        Raises:
            OutOfMemory: there are none.
        """
        num_missing = -(-end // self._page_size) - len(resident.pages)
        if num_missing <= 0:
            return ()
        while len(self._free_pages) < num_missing:
            if not self._evict(needed):
                raise OutOfMemory(
                    "this replay needs more memory for keys and values than there is: neighbours that shared cached "
                    "pages do not share them here; give a larger --kv-cache-memory, or replay without --as-scheduled"
                )
        pages = tuple(self._free_pages[:num_missing])
        del self._free_pages[:num_missing]
        resident.pages.extend(pages)
        return pages

    def leave(self, name: Name) -> None:
        """Give up seat and pages, if there are any."""
        resident = self.residents.pop(name, None)
        if resident is not None:
            self._free_seats.append(resident.seat)
            self._free_pages.extend(resident.pages)
            self.released.append(resident.seat)

    def deltas(self) -> tuple[tuple[SeatTaken, ...], tuple[int, ...]]:
        """Seats taken and released since the last call, for the next step."""
        taken, released = tuple(self.taken), tuple(self.released)
        self.taken, self.released = [], []
        return taken, released

    def _evict(self, needed: Iterable[Name]) -> bool:
        """Take the seat of one who is not needed now; False: there is none."""
        name = next((name for name in self.residents if name not in needed), None)
        if name is None:
            return False
        self.leave(name)
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class TakenFor:
    """What a seat is told of who sits down."""

    sampling: SeatSampling
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...] = ()
    adapter: int | None = None

    def seat_taken(self, seat: int) -> SeatTaken:
        """For a step; token ids only where penalties count them."""
        counts = self.sampling.has_penalties
        return SeatTaken(
            seat=seat,
            sampling=self.sampling,
            num_prompt_tokens=len(self.prompt_token_ids),
            prompt_token_ids=self.prompt_token_ids if counts else (),
            output_token_ids=self.output_token_ids if counts else (),
            adapter=self.adapter,
        )
