"""What executors tell of a prompt's rows: scores and hidden states as transformers gives them, whatever the cut."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from limelight.actors.scheduling.prompt_readout import PromptReadout
from limelight.generation import Pooling
from limelight.models.checkpoint import Checkpoint
from limelight.step import Chunk, Sampled, SeatSampling, SeatTaken, Step, StepExecutor
from tests.models.captured.rigs import CapturedRig, capacity_of
from tests.models.sequences import GREEDY
from tests.models.tiny_models import VOCAB_SIZE, Rig, c_kernels, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PROMPT = tuple((7 * index * index + 3 * index) % VOCAB_SIZE for index in range(90))
"""More rows than one slice has."""
PAGES = tuple(range(12))
KINDS = ["in C", "torch", "captured"]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def checkpoint(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(model, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(model: Any) -> Any:
    """transformers' own `logits` and `hidden_states` for the prompt."""
    with torch.inference_mode():
        return model(torch.tensor([PROMPT]), output_hidden_states=True)


@pytest.fixture(params=KINDS)
def executor(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Iterator[StepExecutor]:
    made: StepExecutor
    if request.param == "captured":
        made = CapturedRig(checkpoint, capacity_of(checkpoint), captured=True).executor
    else:
        made = Rig(checkpoint, kernels=c_kernels() if request.param == "in C" else None).executor
    yield made
    made.close()


def run(
    executor: StepExecutor, readout: PromptReadout, cuts: tuple[int, ...], sampling: SeatSampling = GREEDY
) -> list[Sampled | None]:
    """The prompt in chunks of so many tokens; results of the chunks."""
    results, start, taken = [], 0, (SeatTaken(seat=0, sampling=sampling, num_prompt_tokens=len(PROMPT)),)
    for number, size in enumerate(cuts):
        chunk = Chunk(
            seat=0,
            start=start,
            num_tokens=size,
            token_ids=PROMPT[start : start + size],
            new_pages=() if number else PAGES,
            sample=readout.draws and start + size == len(PROMPT),
            readout=readout.plan(PROMPT, start, size),
        )
        (result,) = executor.submit(Step(number=number, chunks=(chunk,), taken=() if number else taken))()
        results.append(result)
        start += size
    return results


@pytest.mark.parametrize("cuts", [(90,), (3, 70, 17), (1, 89)])
def test_scores_are_those_of_transformers(executor: StepExecutor, expected: Any, cuts: tuple[int, ...]) -> None:
    results = run(executor, PromptReadout(len(PROMPT), 5), cuts)
    scores = [score for result in results if result for score in result.scores]
    logprobs = expected.logits[0, :-1].log_softmax(-1)
    targets = torch.tensor(PROMPT[1:])
    own = logprobs.gather(1, targets[:, None])
    assert np.allclose([score.logprob for score in scores], own[:, 0], atol=1e-4)
    best = logprobs.topk(5)
    assert np.allclose([score.top_logprobs for score in scores], best.values, atol=1e-4)
    assert [score.top_token_ids for score in scores] == [tuple(row) for row in best.indices.tolist()]
    assert [score.rank for score in scores] == (logprobs >= own).sum(1).tolist()
    assert results[-1] is not None
    assert results[-1].token_ids == (int(expected.logits[0, -1].argmax()),)


@pytest.mark.parametrize("cuts", [(90,), (3, 70, 17)])
@pytest.mark.parametrize("pooling", Pooling)
def test_hidden_states_are_those_of_transformers(
    executor: StepExecutor, expected: Any, pooling: Pooling, cuts: tuple[int, ...]
) -> None:
    results = run(executor, PromptReadout(len(PROMPT), pooling=pooling, draws=False), cuts)
    hidden = sum(np.frombuffer(result.hidden, "<f4") for result in results if result and result.hidden)
    states = expected.hidden_states[-1][0]
    assert np.allclose(hidden, states[-1] if pooling is Pooling.LAST else states.sum(0), atol=1e-3)
    assert results[-1] is not None
    assert results[-1].token_ids == ()


def test_other_sequences_of_the_step_draw_the_same_bits(checkpoint: Checkpoint) -> None:
    """A step with a readout runs another recording, or no captured pass: what others get must not tell."""
    sampling = SeatSampling(temperature=0.8, seed=3, num_logprobs=2)
    for kernels in (c_kernels(), None):
        drawn = []
        for readout in (None, PromptReadout(40, 3)):
            rig = Rig(checkpoint, kernels=kernels)
            taken = tuple(SeatTaken(seat=seat, sampling=sampling, num_prompt_tokens=40) for seat in (0, 1))
            chunks = (
                Chunk(seat=0, start=0, num_tokens=40, token_ids=PROMPT[:40], new_pages=PAGES[:5], sample=True),
                Chunk(
                    seat=1,
                    start=0,
                    num_tokens=40,
                    token_ids=PROMPT[40:80],
                    new_pages=PAGES[5:10],
                    sample=True,
                    readout=None if readout is None else readout.plan(PROMPT[40:80], 0, 40),
                ),
            )
            first, second = rig.executor.submit(Step(number=0, chunks=chunks, taken=taken))()
            assert second is not None
            drawn.append((first, second.token_ids, second.logprobs))
        assert drawn[0] == drawn[1]


def test_tokens_that_are_asked_for_have_log_probabilities_at_each_position(
    executor: StepExecutor, expected: Any
) -> None:
    asked = (5, 96, 5, 17)
    sampling = SeatSampling(temperature=0.0, num_logprobs=2, logprob_token_ids=asked)
    result = run(executor, PromptReadout(len(PROMPT)), (90,), sampling)[-1]
    assert result is not None
    assert result.logprobs is not None
    (entry,) = result.logprobs
    logprobs = expected.logits[0, -1].log_softmax(-1)
    assert np.allclose(entry.asked, logprobs[list(asked)], atol=1e-4)
    assert len(entry.top_token_ids) == 2


def test_asked_tokens_of_one_sequence_are_no_matter_of_others(executor: StepExecutor) -> None:
    settings = [
        SeatSampling(temperature=0.0),
        SeatSampling(temperature=0.0, num_logprobs=0, logprob_token_ids=(1, 2, 3)),
        SeatSampling(temperature=0.0, num_logprobs=3, logprob_token_ids=(4,)),
        SeatSampling(temperature=0.0, num_logprobs=1),
    ]
    taken = tuple(SeatTaken(seat=seat, sampling=own, num_prompt_tokens=3) for seat, own in enumerate(settings))
    chunks = tuple(
        Chunk(seat=seat, start=0, num_tokens=3, token_ids=(9, 8, 7), new_pages=(seat,), sample=True)
        for seat in range(4)
    )
    results = executor.submit(Step(number=0, chunks=chunks, taken=taken))()
    entries = [result.logprobs for result in results if result is not None]
    assert entries[0] is None
    shapes = [(len(row[0].top_token_ids), len(row[0].asked)) for row in entries if row is not None]
    assert shapes == [(0, 3), (3, 1), (1, 0)]


def test_a_row_that_is_not_finite_loses_its_chunk_alone(checkpoint: Checkpoint) -> None:
    for kernels in (c_kernels(), None):
        rig = Rig(checkpoint, kernels=kernels)
        good = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=20)
        readouts = [PromptReadout(20, 0), PromptReadout(20, pooling=Pooling.MEAN, draws=False)]
        first = Chunk(seat=0, start=0, num_tokens=8, token_ids=PROMPT[:8], new_pages=(0,))
        rig.executor.submit(Step(number=0, chunks=(first,), taken=(good,)))()
        rig.spoil(0)
        spoilt = Chunk(
            seat=0,
            start=8,
            num_tokens=8,
            token_ids=PROMPT[8:16],
            new_pages=(1,),
            readout=readouts[0].plan(PROMPT, 8, 8),
        )
        other = Chunk(
            seat=1,
            start=0,
            num_tokens=20,
            token_ids=PROMPT[:20],
            new_pages=(2, 3, 4),
            readout=readouts[1].plan(PROMPT, 0, 20),
        )
        taken = SeatTaken(seat=1, sampling=GREEDY, num_prompt_tokens=20)
        lost, kept = rig.executor.submit(Step(number=1, chunks=(spoilt, other), taken=(taken,)))()
        assert lost is not None
        assert "not finite" in (lost.failure or "")
        assert kept is not None
        assert kept.failure is None
        assert all(map(math.isfinite, np.frombuffer(kept.hidden, "<f4")))
