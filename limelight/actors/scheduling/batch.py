"""One step in the making: a token budget spent on running sequences first, then on waiting ones.

All sequences are served in one order: promoted ones, then lower priority values, then those whose share has been served
least (`shares.py`; while one share alone is active: no difference), then earlier arrivals.

- A running sequence with one token to compute (a decode) always gets it: every chunk before it in the order leaves one
  token of the budget for each decode behind it.
- A chunk of a *long* prompt, one with more than half a whole budget still to compute, takes at most half of what is
  left, so that prompts behind it, running or waiting, advance in every step too; of what nobody wanted, the long ones
  get more in a second round. Shorter prompts take what they need.
- A chunk that doesn't reach the end of its tokens ends on a page boundary where it can. Before each chunk of a prompt,
  pages that others have cached meanwhile are adopted instead of computed. Together they make sequences with equal
  prompts compute them once, even while they run side by side.
- A running sequence that needs a page when none is free preempts the running sequence of worst rank, if that is not
  itself; otherwise it pauses, keeping what it holds. So the best of the running ones always advances.
- What then is left of the budget goes to guesses, in the order of rank, as far as pages are free beyond the watermark:
  they never delay a token of anybody, nor preempt.
- A waiting sequence is admitted in order, without skipping, if the pages for all its known tokens are free beyond those
  that running prompts still need and the watermark, one page per running sequence; or if nothing runs. That is the
  guard against thrashing, too: a preempted sequence comes back only when all of it fits and somebody has ended.
- Before all that, a share with fewer seats than its part takes one back in each step, from the share that has most
  beyond its own: so who comes with one request need not wait until one of somebody's hundred has ended.
"""

from limelight.actors.scheduling.fair_queue import FairQueue
from limelight.actors.scheduling.in_flight import PlannedChunk
from limelight.actors.scheduling.residents import Residents
from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.shares import Account
from limelight.step import Chunk, Readout, SeatTaken, Step

MAX_TAKEN_BACK = 4
"""Sequences preempted in a step to let one of another share sit down: one for its seat, more for its pages."""


class Batch:
    """Plans step number `number`.

    Used once: `make_way`, `serve_running`, `admit_waiting`, `spend_rest`, `guess`, `to_step`.

    Args:
        budget: tokens of the step at most; leaves at least one page beside a token for each decode.

    Attributes:
        chunks: in the order of the step's chunks.
        num_preempted: sequences preempted for this step.
        admitted: sequences that sat down for this step.
        passed_over: those that wait because it was the turn of another share.
    """

    __slots__ = (
        "_budget",
        "_cut",
        "_left",
        "_number",
        "_order",
        "_page_size",
        "_promised_pages",
        "_residents",
        "_waiting",
        "admitted",
        "chunks",
        "num_preempted",
        "passed_over",
    )

    def __init__(self, number: int, budget: int, page_size: int, residents: Residents, waiting: FairQueue) -> None:
        self._number = number
        self._budget = self._left = budget
        self._page_size = page_size
        self._residents = residents
        self._waiting = waiting
        self._promised_pages = 0
        self._order = residents.running
        self._cut: list[PlannedChunk] = []
        self.chunks: list[PlannedChunk] = []
        self.admitted: list[Sequence] = []
        self.passed_over: list[Sequence] = []
        self.num_preempted = 0

    def make_way(self) -> None:
        """Let the one whose turn it is sit down at once, if its share has fewer seats than its part."""
        shares, residents = self._waiting.shares, self._residents
        if not shares.is_contested:
            return
        sequence = self._waiting.first(lambda account: account.num_seats + 1 <= max(self._part(account), 1.0))
        if sequence is not None and not sequence.num_pending_tokens and self._can_sit(sequence):
            self._sit(sequence)
        self._order = shares.ordered(residents.running)

    def serve_running(self) -> None:
        """Chunks for the running sequences, preempting from the end where pages are short."""
        running, page_size = self._order, self._page_size
        all_wanted = [sequence.num_wanted_tokens for sequence in running]
        num_decodes_behind = all_wanted.count(1)
        for index, wanted in enumerate(all_wanted):
            if index >= len(running) or not self._left:  # who comes later may have been preempted
                break
            sequence = running[index]
            if wanted == 1:
                num_decodes_behind -= 1
                start = sequence.num_computed_tokens
                if start % page_size == 0:
                    self._serve(sequence, 1)
                    continue
                # What `_serve` does when the token has its slot already: nearly every chunk, so not a call more.
                self.chunks.append(PlannedChunk(sequence, sequence.epoch, sequence.pages, start, 1))
                self._left -= 1
                sequence.num_computed_tokens = start + 1
                if (start + 1) % page_size == 0:
                    self._residents.register(sequence)
            elif wanted and self._left > num_decodes_behind:
                self._residents.adopt(sequence, self._residents.cached_pages(sequence))
                self._serve(sequence, self._share(sequence, self._left - num_decodes_behind))

    def admit_waiting(self) -> None:
        """Let waiting sequences sit down and give them their first chunks."""
        residents = self._residents
        while self._left and residents.num_free_seats:
            sequence = self._waiting.first()
            if sequence is None or sequence.num_pending_tokens:
                return
            cached = residents.cached_pages(sequence)
            if residents.running and not self._fits(sequence, cached):
                return
            self._sit(sequence, cached)
            if self._order is not residents.running:
                self._order.append(sequence)
            self._serve(sequence, self._share(sequence, self._left))

    def spend_rest(self) -> None:
        """Give what is left of the budget to the chunks that could use more."""
        for chunk in self._cut:
            sequence = chunk.sequence
            if not self._left or self._residents.cached_pages(sequence):
                continue
            size = min(sequence.num_wanted_tokens, self._left, self._residents.num_slots(sequence))
            size = self._whole_pages(sequence, size)
            if size:
                chunk.num_tokens += size
                self._left -= size
                self._residents.advance(sequence, size, self._number)

    def guess(self) -> None:
        """Add guesses to the decodes of sequences that have a `lookup`.

        Lookups learn at most as many tokens in a step as it may compute: they keep up with prefill and decode, and
        catch up in a few steps with what the prefix cache gave.
        """
        num_learnable = self._budget
        for chunk in self.chunks:
            sequence = chunk.sequence
            if sequence.lookup is None or sequence.readout is not None:
                continue
            num_learnable -= sequence.lookup.learn(sequence.token_ids, num_learnable)
            if chunk.start + chunk.num_tokens != len(sequence.token_ids):
                continue
            room = min(self._left, sequence.max_length - sequence.num_tokens - 1, self._num_spare_slots(sequence))
            drafts = sequence.lookup.guess(sequence.token_ids, room) if room > 0 else ()
            if drafts:
                chunk.drafts = drafts
                chunk.num_tokens += len(drafts)
                self._left -= len(drafts)
                self._residents.advance(sequence, len(drafts), self._number)

    def to_step(self) -> Step | None:
        """The step, or None if there is nothing to run: the seats given up then wait for the next one."""
        if not self.chunks:
            return None
        taken = tuple(_seat_taken(sequence) for sequence in self.admitted)
        chunks = tuple([_sealed(chunk) for chunk in self.chunks])
        return Step(number=self._number, chunks=chunks, taken=taken, released=self._residents.take_released())

    def _share(self, sequence: Sequence, left: int) -> int:
        """How many of `left` tokens of the budget a prompt may take at once."""
        if sequence.num_wanted_tokens * 2 <= self._budget:
            return left
        return min(left, max(self._page_size, left // 2))

    def _serve(self, sequence: Sequence, share: int) -> None:
        """A chunk of at most `share` tokens, if there are pages for at least one."""
        wanted = sequence.num_wanted_tokens
        size = min(wanted, share, self._make_room(sequence))
        if not size:
            return
        if size < wanted:
            size = self._whole_pages(sequence, size) or size
        chunk = PlannedChunk(sequence, sequence.epoch, sequence.pages, sequence.num_computed_tokens, size)
        self.chunks.append(chunk)
        self._left -= size
        self._residents.advance(sequence, size, self._number)
        if size < wanted:
            self._cut.append(chunk)
            self._promised_pages += self._num_pages(sequence.num_tokens) - len(sequence.pages)

    def _can_sit(self, sequence: Sequence) -> bool:
        """Whether there are a seat and pages for it, after taking back as much as may be."""
        residents = self._residents
        for _ in range(MAX_TAKEN_BACK + 1):
            if not residents.num_free_seats:
                victim = self._victim(sequence, self._most_seats())
            elif self._fits(sequence, residents.cached_pages(sequence)):
                return True
            else:
                victim = self._victim(sequence, self._most_pages(sequence))
            if victim is None:
                return False
            self._preempt(victim)
            victim.is_passed_over = True
            self.passed_over.append(victim)
        return False

    def _most_seats(self) -> Account | None:
        """The share that has most seats beyond its part; its last one is nobody's to take."""
        account = max(self._waiting.shares.active.values(), key=lambda other: other.num_seats / other.weight)
        return account if account.num_seats > max(self._part(account), 1.0) else None

    def _most_pages(self, sequence: Sequence) -> Account | None:
        """The share that has most pages beyond its part, if those of `sequence` would be within its own."""
        pages = dict.fromkeys(self._waiting.shares.active.values(), 0)
        for other in self._residents.running:
            pages[other.account] += len(other.pages)
        num_pages, shares = self._residents.pool.num_pages, self._waiting.shares
        wanted = pages[sequence.account] + self._num_pages(sequence.num_tokens)
        account = max(pages, key=lambda other: pages[other] / other.weight)
        may_have = wanted <= shares.part(sequence.account) * num_pages
        has_more = account.num_seats > 1 and pages[account] > shares.part(account) * num_pages
        return account if may_have and has_more else None

    def _victim(self, sequence: Sequence, account: Account | None) -> Sequence | None:
        """The last of a share; None: it is served before `sequence` whatever its share has had."""
        for victim in reversed(self._residents.running):
            if victim.rank[:2] < sequence.rank[:2]:
                return None
            if victim.account is account:
                return victim
        return None

    def _part(self, account: Account) -> float:
        """Seats that are a share's own."""
        return self._waiting.shares.part(account) * self._residents.num_seats

    def _sit(self, sequence: Sequence, cached: list[int] | None = None) -> None:
        """A waiting sequence takes a seat, and the pages that are there already."""
        residents = self._residents
        self._waiting.remove(sequence)
        sequence.is_passed_over = False
        if self._waiting.shares.is_contested:
            self._pass_over(sequence)
        residents.seat(sequence)
        residents.adopt(sequence, residents.cached_pages(sequence) if cached is None else cached)
        if not sequence.was_scheduled:
            sequence.cached_tokens = sequence.num_computed_tokens
        self.admitted.append(sequence)

    def _pass_over(self, sequence: Sequence) -> None:
        """Note who would have sat down before `sequence` if it had not been the turn of its share."""
        for other in self._waiting.sequences():
            if not other.is_passed_over and other.account is not sequence.account and other.rank < sequence.rank:
                other.is_passed_over = True
                self.passed_over.append(other)

    def _preempt(self, victim: Sequence) -> None:
        self._residents.unseat(victim)
        self._waiting.push(victim)
        self.num_preempted += 1

    def _make_room(self, sequence: Sequence) -> int:
        """Tokens that there are pages for, after preempting as many as needed to have one; 0 if it must pause."""
        while not (num_slots := self._residents.num_slots(sequence)):
            victim = self._order[-1]
            if victim is sequence:
                return 0
            self._preempt(victim)
            if self._order is not self._residents.running:
                self._order.pop()
        return num_slots

    def _fits(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether a waiting sequence may join those that run."""
        pool = self._residents.pool
        num_in_use = sum(not pool.is_free(page) for page in cached)
        needed = self._num_pages(sequence.num_tokens) - num_in_use
        watermark = len(self._residents.running) + 1
        return needed + self._promised_pages + watermark <= pool.num_free

    def _num_spare_slots(self, sequence: Sequence) -> int:
        """Slots for guesses: those of the pages it has, and of pages that are free beyond the watermark."""
        num_free = max(0, self._residents.pool.num_free - len(self._residents.running) - self._promised_pages)
        return (len(sequence.pages) + num_free) * self._page_size - sequence.num_computed_tokens

    def _whole_pages(self, sequence: Sequence, size: int) -> int:
        """`size` cut down so that the chunk ends on a page boundary, if it doesn't reach the last token; 0 if less."""
        start = sequence.num_computed_tokens
        if size >= sequence.num_wanted_tokens:
            return size
        return max(0, (start + size) // self._page_size * self._page_size - start)

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)


def _seat_taken(sequence: Sequence) -> SeatTaken:
    assert sequence.seat is not None
    penalised = sequence.sampling.has_penalties
    return SeatTaken(
        seat=sequence.seat,
        sampling=sequence.sampling,
        num_prompt_tokens=sequence.num_prompt_tokens,
        prompt_token_ids=sequence.prompt_token_ids if penalised else (),
        output_token_ids=tuple(sequence.token_ids[sequence.num_prompt_tokens :]) if penalised else (),
        adapter=sequence.adapter,
    )


def _sealed(chunk: PlannedChunk) -> Chunk:
    """The runner's view of a chunk whose size is final; from here on its token is being drawn."""
    sequence, start, num_tokens, drafts = chunk.sequence, chunk.start, chunk.num_tokens, chunk.drafts
    assert sequence.seat is not None
    end = start + num_tokens - len(drafts)
    chunk.sample = sample = end == len(sequence.token_ids) + sequence.num_pending_tokens and sequence.draws
    in_seat = sequence.drew_in_seat and sample and num_tokens == 1
    new_pages: tuple[int, ...] = ()
    if len(sequence.pages) > sequence.num_sent_pages:
        new_pages = tuple(sequence.pages[sequence.num_sent_pages :])
        sequence.num_sent_pages = len(sequence.pages)
    if sample:
        sequence.num_pending_tokens += 1
        sequence.drew_in_seat = True
    readout: Readout | None = None
    if sequence.readout is not None:
        readout = sequence.readout.plan(sequence.token_ids, start, num_tokens)
        chunk.reports = readout is not None
    return Chunk(
        seat=sequence.seat,
        start=start,
        num_tokens=num_tokens,
        token_ids=None if in_seat else (*sequence.token_ids[start:end], *drafts),
        new_pages=new_pages,
        sample=sample,
        num_drafts=len(drafts),
        readout=readout,
        masked=sample and sequence.constraint is not None,
    )
