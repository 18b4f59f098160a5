"""Who sits where, and what a step brings them, written into the buffers that a recorded pass reads."""

from collections.abc import Sequence

from limelight.kernels.cpu.step_buffers import StepBuffers
from limelight.step import Chunk, SeatTaken


class RecordedSeats:
    """The seat table beside `StepBuffers`: what the pass does not need to know.

    Attributes:
        adapters: per seat the id of its tenant's adapter, None for the base model alone.
    """

    def __init__(self, buffers: StepBuffers, vocab_size: int) -> None:
        num_seats = buffers.limits.num_seats
        self.adapters: list[int | None] = [None] * num_seats
        self._buffers = buffers
        self._vocab_size = vocab_size
        self._num_pages = [0] * num_seats

    def release(self, seat: int) -> None:
        """Forget the tenant."""
        self._num_pages[seat] = 0
        self.adapters[seat] = None

    def take(self, taken: SeatTaken) -> None:
        """Seat a tenant."""
        self.release(taken.seat)
        self.adapters[taken.seat] = taken.adapter

    def place(self, chunks: Sequence[Chunk]) -> None:
        """Write the chunks of a step, and append their pages.

        Raises:
            ValueError: a chunk contradicts its seat, the vocabulary or the limits. No seat has been changed then.
        """
        limits = self._buffers.limits
        numbers: list[tuple[int, int, int, bool, int]] = []
        pages: list[tuple[int, int, tuple[int, ...]]] = []
        given: list[tuple[int, tuple[int, ...]]] = []
        num_rows = num_sampled = 0
        for chunk in chunks:
            seat, num_tokens, token_ids = chunk.seat, chunk.num_tokens, chunk.token_ids
            end = chunk.start + num_tokens
            num_pages = self._num_pages[seat]
            if chunk.new_pages:
                pages.append((seat, num_pages, chunk.new_pages))
                num_pages += len(chunk.new_pages)
            if num_pages * limits.page_size < end or num_pages > limits.max_pages:
                raise ValueError(
                    f"the chunk at seat {seat} ends at position {end} and has {num_pages} pages; it needs "
                    f"{-(-end // limits.page_size)}, and a seat holds at most {limits.max_pages}"
                )
            if token_ids is not None:
                self._check_tokens(seat, num_tokens, token_ids)
                given.append((num_rows, token_ids))
            elif num_tokens != 1:
                raise ValueError(f"the chunk at seat {seat} has 1 token id for {num_tokens} rows")
            drawn = chunk.num_drafts + 1 if chunk.sample else 0
            numbers.append((seat, chunk.start, num_tokens, token_ids is not None, drawn))
            num_rows += num_tokens
            num_sampled += drawn
        if num_rows > limits.num_tokens or num_sampled > limits.num_sampled:
            raise ValueError(
                f"the step has {num_rows} rows of which {num_sampled} draw; the most are {limits.num_tokens} and "
                f"{limits.num_sampled}"
            )
        self._write(numbers, pages, given, num_rows, num_sampled)

    def _check_tokens(self, seat: int, num_tokens: int, token_ids: tuple[int, ...]) -> None:
        if len(token_ids) != num_tokens:
            raise ValueError(f"the chunk at seat {seat} has {len(token_ids)} token ids for {num_tokens} rows")
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            raise ValueError(
                f"the chunk at seat {seat} has a token id that is none of the vocabulary's {self._vocab_size:,}"
            )

    def _write(
        self,
        numbers: list[tuple[int, int, int, bool, int]],
        pages: list[tuple[int, int, tuple[int, ...]]],
        given: list[tuple[int, tuple[int, ...]]],
        num_rows: int,
        num_sampled: int,
    ) -> None:
        buffers = self._buffers
        buffers.counts[:] = num_rows, len(numbers), num_sampled
        buffers.chunks[: len(numbers)] = numbers
        for seat, first, new in pages:
            buffers.page_table[seat, first : first + len(new)] = new
            self._num_pages[seat] = first + len(new)
        for row, token_ids in given:
            buffers.given_tokens[row : row + len(token_ids)] = token_ids
