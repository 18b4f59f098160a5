"""Sequences cut into chunks by hand: a stand-in for the scheduler that tests steer step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from limelight.step import Chunk, Sampled, SeatSampling, SeatTaken, Step, StepExecutor

GREEDY = SeatSampling(temperature=0.0)


@dataclass
class Running:
    """One sequence at a seat: its tokens so far, and how many of them are in pages."""

    seat: int
    tokens: list[int]
    num_prompt_tokens: int
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    num_announced_pages: int = 0
    drawn: list[Sampled] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]


class Batch:
    """Hands out pages and seats, and makes steps of whatever cut the test asks for."""

    def __init__(self, executor: StepExecutor, page_size: int, free_pages: Sequence[int]) -> None:
        self._executor = executor
        self._page_size = page_size
        self._free_pages = list(free_pages)
        self._taken: list[SeatTaken] = []
        self._released: list[int] = []
        self._number = 0

    def sit(
        self,
        seat: int,
        prompt: Sequence[int],
        sampling: SeatSampling = GREEDY,
        shared_pages: Sequence[int] = (),
        output: Sequence[int] = (),
        adapter: int | None = None,
    ) -> Running:
        """Take a seat. `shared_pages` hold the first tokens of the prompt already."""
        counted = sampling.has_penalties
        self._taken.append(
            SeatTaken(
                seat=seat,
                sampling=sampling,
                num_prompt_tokens=len(prompt),
                prompt_token_ids=tuple(prompt) if counted else (),
                output_token_ids=tuple(output) if counted else (),
                adapter=adapter,
            )
        )
        return Running(
            seat=seat,
            tokens=[*prompt, *output],
            num_prompt_tokens=len(prompt),
            num_computed=len(shared_pages) * self._page_size,
            pages=list(shared_pages),
        )

    def leave(self, sequence: Running) -> None:
        """Give up the seat; its pages may be handed out again, with what is in them."""
        self._released.append(sequence.seat)
        self._free_pages = sequence.pages + self._free_pages

    def step(self, *cuts: tuple[Running, int]) -> list[Running]:
        """Run one step with so many tokens of each sequence; one that reaches its last token draws the next.

        Returns:
            the sequences that drew, in the order of the logits.
        """
        chunks = [self._chunk(sequence, num_tokens) for sequence, num_tokens in cuts]
        step = Step(number=self._number, chunks=tuple(chunks), taken=tuple(self._taken), released=tuple(self._released))
        self._number += 1
        self._taken, self._released = [], []
        for (sequence, num_tokens), sampled in zip(cuts, self._executor.submit(step)(), strict=True):
            sequence.num_computed += num_tokens
            if sampled is not None:
                sequence.drawn.append(sampled)
                sequence.tokens += sampled.token_ids
        return [sequence for (sequence, _), chunk in zip(cuts, chunks, strict=True) if chunk.sample]

    def generate(self, sequence: Running, num_tokens: int) -> list[int]:
        """Run the sequence alone until it has drawn `num_tokens`."""
        while len(sequence.output) < num_tokens:
            self.step((sequence, len(sequence.tokens) - sequence.num_computed))
        return sequence.output

    def _chunk(self, sequence: Running, num_tokens: int) -> Chunk:
        end = sequence.num_computed + num_tokens
        while len(sequence.pages) * self._page_size < end:
            sequence.pages.append(self._free_pages.pop(0))
        new_pages = tuple(sequence.pages[sequence.num_announced_pages :])
        sequence.num_announced_pages = len(sequence.pages)
        decode = (
            num_tokens == 1 and sequence.num_computed >= max(sequence.num_prompt_tokens, 1) and bool(sequence.drawn)
        )
        return Chunk(
            seat=sequence.seat,
            start=sequence.num_computed,
            num_tokens=num_tokens,
            token_ids=None if decode else tuple(sequence.tokens[sequence.num_computed : end]),
            new_pages=new_pages,
            sample=end == len(sequence.tokens),
        )
