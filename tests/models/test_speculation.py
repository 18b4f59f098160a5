"""Guessed tokens on a real forward pass: whatever is guessed, the same tokens are drawn."""

from collections import deque
from collections.abc import Callable

import pytest
import torch

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.prompt_lookup import Speculation
from limelight.actors.scheduling.sequence import Sequence
from limelight.models.checkpoint import Checkpoint
from limelight.step import Chunk, SampledLogprobs, SeatSampling, SeatTaken, Step, StepResult
from tests.models.tiny_models import Rig, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
GREEDY = SeatSampling(temperature=0.0, num_logprobs=2)
WARM = SeatSampling(temperature=0.3, top_k=20, seed=7)
PENALISED = SeatSampling(temperature=0.0, repetition_penalty=1.2)
BIASED = SeatSampling(temperature=0.0, logit_bias={5: 3.0, 9: -100.0}, num_logprobs=0)
REQUESTS = [
    ((5, 17, 80, 3, 5, 17, 80, 3, 5, 17), GREEDY),
    ((5, 17, 80, 3, 5, 17, 80, 3, 5, 17, 80, 3, 9, 9), WARM),
    (tuple(range(30)) + tuple(range(12)), PENALISED),
    (tuple(range(40, 60)) * 2, BIASED),
    ((1,), GREEDY),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(tiny_llama(), tmp_path_factory.mktemp("tiny"))


class Run:
    """All requests through planner and executor."""

    def __init__(
        self, checkpoint: Checkpoint, speculation: Speculation | None, *, depth: int = 1, num_pages: int = 64
    ) -> None:
        rig = Rig(checkpoint, num_pages=num_pages)
        self.planner = Planner(rig.capacity, prefix_caching=True, pipeline_depth=depth, speculation=speculation)
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[SampledLogprobs]] = {}
        for number, (prompt, sampling) in enumerate(REQUESTS):
            sequence = Sequence(request_id=f"r{number}", prompt_token_ids=prompt, sampling=sampling, max_tokens=60)
            self.planner.add(sequence)
        submitted: deque[tuple[int, Callable[[], StepResult]]] = deque()
        while self.planner.has_work:
            while (step := self.planner.plan()) is not None:
                submitted.append((step.number, rig.executor.submit(step)))
            number, wait = submitted.popleft()
            for progress in self.planner.complete(number, wait()):
                name = progress.sequence.request_id
                self.tokens.setdefault(name, []).extend(progress.token_ids)
                self.logprobs.setdefault(name, []).extend(progress.logprobs or ())
            self.planner.check()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_pages", [64, 18])
@pytest.mark.parametrize("most", [1, 5])
def test_guesses_change_no_token_and_no_logprob(checkpoint: Checkpoint, most: int, num_pages: int, depth: int) -> None:
    plain = Run(checkpoint, None)
    guessed = Run(checkpoint, Speculation(num_tokens=most, longest=3, shortest=1), depth=depth, num_pages=num_pages)
    assert guessed.tokens == plain.tokens
    for name, rows in plain.logprobs.items():
        assert len(guessed.logprobs[name]) == len(rows)
        for row, expected in zip(guessed.logprobs[name], rows, strict=True):
            assert row.top_token_ids == expected.top_token_ids
            assert row.logprob == pytest.approx(expected.logprob, abs=1e-4)
    assert 0 < guessed.planner.num_accepted_tokens < guessed.planner.num_draft_tokens
    assert (guessed.planner.num_preemptions > 0) == (num_pages == 18)


def test_a_step_may_check_guesses_of_some_and_read_the_last_token_of_others(checkpoint: Checkpoint) -> None:
    """Guesses right, wrong and absent side by side; the seat then holds the last token that counts."""
    rig = Rig(checkpoint)
    prompts = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8), (9, 7)]
    taken = tuple(SeatTaken(seat=seat, sampling=GREEDY, num_prompt_tokens=1) for seat in range(4))
    prefill = tuple(
        Chunk(seat=seat, start=0, num_tokens=len(prompt), token_ids=prompt, new_pages=(seat, seat + 8), sample=True)
        for seat, prompt in enumerate(prompts)
    )
    first = [
        sampled.token_ids[0]
        for sampled in rig.executor.submit(Step(number=0, chunks=prefill, taken=taken))()
        if sampled
    ]

    def solo(seat: int, num_tokens: int) -> list[int]:
        """Greedy tokens of one prompt, by whole prefills in a rig of its own."""
        tokens = list(prompts[seat])
        for _ in range(num_tokens):
            own = Rig(checkpoint)
            chunk = Chunk(
                seat=0, start=0, num_tokens=len(tokens), token_ids=tuple(tokens), new_pages=(0, 1, 2), sample=True
            )
            own.executor.submit(Step(number=0, chunks=(chunk,), taken=taken[:1]))()
            tokens.append(int(own.logits[0].argmax()))
        return tokens[len(prompts[seat]) :]

    truth = [solo(seat, 5) for seat in range(4)]
    assert [row[0] for row in truth] == first
    wrong = (truth[1][2] + 1) % 97
    guesses = [tuple(truth[0][1:4]), (truth[1][1], wrong), (), ((truth[3][1] + 1) % 97,)]
    chunks = tuple(
        Chunk(
            seat=seat,
            start=len(prompts[seat]),
            num_tokens=1 + len(guess),
            token_ids=(first[seat], *guess) if guess else None,
            sample=True,
            num_drafts=len(guess),
        )
        for seat, guess in enumerate(guesses)
    )
    result = rig.executor.submit(Step(number=1, chunks=chunks))()
    drawn = [sampled.token_ids for sampled in result if sampled]
    assert drawn == [tuple(truth[0][1:5]), tuple(truth[1][1:3]), (truth[2][1],), (truth[3][1],)]
    assert [len(sampled.logprobs or ()) for sampled in result if sampled] == [4, 2, 1, 1]

    last = tuple(
        Chunk(seat=seat, start=len(prompts[seat]) + len(tokens), num_tokens=1, token_ids=None, sample=True)
        for seat, tokens in enumerate(drawn)
    )
    result = rig.executor.submit(Step(number=2, chunks=last))()
    assert torch.equal(
        torch.tensor([sampled.token_ids[0] for sampled in result[1:] if sampled]),
        torch.tensor([truth[1][3], truth[2][2], truth[3][2]]),
    )
