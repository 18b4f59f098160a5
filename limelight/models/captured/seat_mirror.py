"""What the host knows of the table of seats, and how a step changes it: patches of the device's words.

The device's table is never read: what a step may assume of a seat is checked here, before anything is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.triton.step_memory import SeatLayout, StepLimits
from limelight.models.captured.seat_settings import is_biased_beyond, settings_words, too_much_bias
from limelight.models.captured.step_content import StepContent, content_of
from limelight.step import Capacity, SeatSampling, SeatTaken, Step

Words = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SeatChange:
    """A checked step.

    Attributes:
        content: None for a step of deltas alone.
        adapters: of each seat, as after the step.
        addresses, values: patches; no address twice.
        counted: seats taken whose tokens are counted.
    """

    step: Step
    content: StepContent | None
    num_pages: Words
    occupied: NDArray[np.bool_]
    adapters: list[int | None]
    addresses: Words
    values: Words
    counted: tuple[SeatTaken, ...]


class SeatMirror:
    """Settings, adapters and numbers of pages of the seats.

    Attributes:
        adapters: per seat the id of its tenant's adapter, None for the base model alone.
        refused: why the tenant of a seat cannot be served.
    """

    def __init__(self, capacity: Capacity, limits: StepLimits, layout: SeatLayout) -> None:
        self.adapters: list[int | None] = [None] * capacity.num_seats
        self.refused: dict[int, str] = {}
        self._capacity = capacity
        self._limits = limits
        self._layout = layout
        self._settings: list[SeatSampling | None] = [None] * capacity.num_seats
        self._occupied = np.zeros(capacity.num_seats, np.bool_)
        self._num_pages = np.zeros(capacity.num_seats, np.int32)

    def num_logprobs(self, seat: int) -> int | None:
        """What the tenant of a seat wants to know beside its tokens."""
        settings = self._settings[seat]
        return None if settings is None else settings.num_logprobs

    def asked(self, seat: int) -> tuple[int, ...]:
        """The tokens that the tenant of a seat asks for beside these."""
        settings = self._settings[seat]
        return () if settings is None else settings.logprob_token_ids

    def read(self, step: Step) -> SeatChange:
        """What a step changes; nothing has been changed yet.

        Raises:
            ValueError: it contradicts the seats, the vocabulary or the limits.
        """
        num_pages, occupied, adapters = self._num_pages, self._occupied, self.adapters
        taken = [entry.seat for entry in step.taken]
        patches = _Patches()
        if step.released or taken:
            self._check_seats([*step.released, *taken])
            if len(set(taken)) != len(taken):
                raise ValueError(f"step {step.number} seats two at one seat: {sorted(taken)}")
            num_pages, occupied, adapters = num_pages.copy(), occupied.copy(), adapters.copy()
            num_pages[[*step.released, *taken]] = 0
            occupied[list(step.released)] = False
            occupied[taken] = True
            for seat in step.released:
                adapters[seat] = None
            for entry in step.taken:
                adapters[entry.seat] = entry.adapter
                self._check_counted(entry)
                for first, words in settings_words(entry.sampling, self._capacity.vocab_size):
                    patches.put(entry.seat * self._layout.words + first, words)
        content = None
        if step.chunks:
            content, num_pages = self._read_chunks(step, num_pages, occupied, patches)
        addresses, values = patches.arrays()
        return SeatChange(
            step=step,
            content=content,
            num_pages=num_pages,
            occupied=occupied,
            adapters=adapters,
            addresses=addresses,
            values=values,
            counted=tuple(entry for entry in step.taken if entry.sampling.has_penalties),
        )

    def apply(self, change: SeatChange) -> None:
        """From here on, the seats are as after the step."""
        self._num_pages, self._occupied, self.adapters = change.num_pages, change.occupied, change.adapters
        for seat in change.step.released:
            self._settings[seat] = None
            self.refused.pop(seat, None)
        for entry in change.step.taken:
            self._settings[entry.seat] = entry.sampling
            self.refused.pop(entry.seat, None)
            if is_biased_beyond(entry.sampling, self._capacity.vocab_size):
                self.refused[entry.seat] = too_much_bias(entry.sampling)

    def _check_seats(self, seats: list[int]) -> None:
        if min(seats) < 0 or max(seats) >= self._capacity.num_seats:
            raise ValueError(f"there is no seat {min(seats)} to {max(seats)}: there are {self._capacity.num_seats}")

    def _check_counted(self, taken: SeatTaken) -> None:
        vocab_size = self._capacity.vocab_size
        for token_ids in (taken.prompt_token_ids, taken.output_token_ids):
            if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
                raise ValueError(f"seat {taken.seat} counts a token that is none of the vocabulary's {vocab_size:,}")

    def _read_chunks(
        self, step: Step, num_pages: Words, occupied: NDArray[np.bool_], patches: _Patches
    ) -> tuple[StepContent, Words]:
        chunks = step.chunks
        numbers = np.array([(chunk.seat, chunk.start, chunk.num_tokens) for chunk in chunks], np.int32)
        seats, starts, lengths = numbers.T.copy()
        listed: list[int] = seats.tolist()
        self._check_seats(listed)
        if len(set(listed)) != len(listed):
            raise ValueError(f"step {step.number} has two chunks at one seat: {sorted(listed)}")
        if not occupied[seats].all():
            raise ValueError(f"seat {seats[np.argmin(occupied[seats])]} runs but was never taken")
        growing = [chunk for chunk in chunks if chunk.new_pages]
        if growing:
            num_pages = num_pages.copy()
            for chunk in growing:
                if min(chunk.new_pages) < 0 or max(chunk.new_pages) >= self._capacity.num_pages:
                    raise ValueError(f"the chunk at seat {chunk.seat} gets pages that the pool does not have")
                first = int(num_pages[chunk.seat])
                patches.put(chunk.seat * self._layout.words + self._layout.pages + first, chunk.new_pages)
                num_pages[chunk.seat] = first + len(chunk.new_pages)
        self._check_held(seats, starts, starts + lengths, num_pages)
        content = content_of(chunks, seats, starts, lengths, self._capacity.vocab_size)
        if content.num_rows > self._limits.rows or content.num_sampled > self._limits.sampled:
            raise ValueError(
                f"the step has {content.num_rows} rows of which {content.num_sampled} draw; the most are "
                f"{self._limits.rows} and {self._limits.sampled}"
            )
        return content, num_pages

    def _check_held(self, seats: Words, starts: Words, ends: Words, num_pages: Words) -> None:
        held = num_pages[seats]
        most = self._layout.max_pages
        wrong = (held.astype(np.int64) * self._capacity.page_size < ends) | (held > most) | (starts < 0)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"the chunk at seat {seats[at]} begins at position {starts[at]}, ends at {ends[at]} and has {held[at]} "
                f"pages; it needs {-(-int(ends[at]) // self._capacity.page_size)}, and a seat holds at most {most}"
            )


@dataclass(slots=True)
class _Patches:
    """Runs of words that follow each other."""

    addresses: list[Words] = field(default_factory=list)
    values: list[Words] = field(default_factory=list)

    def put(self, address: int, values: Words | tuple[int, ...]) -> None:
        self.addresses.append(np.arange(address, address + len(values), dtype=np.int32))
        self.values.append(np.asarray(values, np.int32))

    def arrays(self) -> tuple[Words, Words]:
        if not self.addresses:
            return NOTHING, NOTHING
        return np.concatenate(self.addresses), np.concatenate(self.values)


NOTHING: Words = np.empty(0, np.int32)
