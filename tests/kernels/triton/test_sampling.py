import random

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from limelight.kernels import reference_sampling
from limelight.kernels.triton.sampling import draw
from limelight.kernels.triton.step_memory import NOBODY
from limelight.step import SeatSampling
from tests.kernels.triton.drawn_seats import Drawing, random_sampling
from tests.kernels.triton.step_buffers import GARBAGE

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_PROCESSORS = 4
NUM_ROWS = 10


def drawn_tokens(drawing: Drawing, logits: Tensor, num_processors: int = NUM_PROCESSORS) -> list[int]:
    before = logits.clone()
    draw(logits, drawing.batch(len(logits)), drawing.drawn, num_processors)
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32)), "logits stay as they are"
    return drawing.drawn.token_ids[: len(logits)].tolist()


@pytest.mark.parametrize("case", range(8))
def test_tokens_are_those_of_the_reference(case: int) -> None:
    rng = random.Random(case)
    vocab_size = rng.choice([5, 1000, 1024, 3000])
    drawing = Drawing([random_sampling(rng, vocab_size) for _ in range(NUM_ROWS)], vocab_size, rng)
    logits = torch.randn(NUM_ROWS, vocab_size, generator=torch.Generator().manual_seed(case)) * rng.choice([0.1, 3, 10])
    expected = reference_sampling.sample(logits.clone(), drawing.reference).token_ids.tolist()
    padded = torch.cat((logits, torch.full((3, vocab_size), torch.nan)))
    assert drawn_tokens(drawing, padded) == [*expected, GARBAGE, GARBAGE, GARBAGE]
    assert torch.equal(drawing.drawn.best_logits[:NUM_ROWS], logits.amax(-1))
    assert (drawing.drawn.words[NUM_ROWS : NUM_ROWS + 3] == GARBAGE).all(), "nobody's rows are left alone"


def test_a_row_draws_the_same_however_the_vocabulary_is_split() -> None:
    rng = random.Random(0)
    drawing = Drawing([random_sampling(rng, 9001) for _ in range(4)], 5001, rng)
    logits = torch.randn(4, 5001) * 2
    assert drawn_tokens(drawing, logits, 1) == drawn_tokens(drawing, logits, 132)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_equal_logits_keep_the_lowest_token_or_all_of_them(temperature: float) -> None:
    settings = [
        SeatSampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        for top_k, top_p in ((1, 1.0), (0, 0.01), (3, 0.5))
        for seed in range(6)
    ]
    drawing = Drawing(settings, 3000, random.Random(0))
    logits = torch.zeros(len(settings), 3000)
    logits[:, 7::11] = 2.0
    logits[::2, 7::11] = -0.0
    logits[::2, 5::13] = 0.0
    expected = reference_sampling.sample(logits.clone(), drawing.reference).token_ids.tolist()
    assert drawn_tokens(drawing, logits) == expected


def test_masks_block_what_they_do_not_allow() -> None:
    rng, vocab_size = random.Random(1), 3000
    drawing = Drawing([random_sampling(rng, vocab_size) for _ in range(16)], vocab_size, rng)
    logits = torch.randn(16, vocab_size)
    is_allowed = torch.rand(16, vocab_size) < torch.tensor([0.5, 0.01] * 8).unsqueeze(1)
    is_allowed[3] = False
    is_allowed[3, 2999] = True
    bits = np.packbits(np.pad(is_allowed.numpy(), ((0, 0), (0, -vocab_size % 32))), axis=1, bitorder="little")
    order = rng.sample(range(16), 16)
    drawing.allowed[torch.tensor(order)] = torch.from_numpy(bits.view(np.int32).copy())
    drawing.step.sample_masks[:16] = torch.tensor(order)
    drawing.step.sample_masks[5] = NOBODY
    is_allowed[5] = True
    sampling = msgspec.structs.replace(drawing.reference, allowed=is_allowed)
    expected = reference_sampling.sample(logits.clone(), sampling)
    assert drawn_tokens(drawing, logits) == expected.token_ids.tolist()
    assert expected.best_scores is not None
    temperature = torch.where(sampling.temperature > 0, sampling.temperature, 1)
    assert torch.equal(drawing.drawn.best_scores[:16], expected.best_scores / temperature)
    assert torch.equal(drawing.drawn.best_logits[:16], logits.amax(-1)), "the model's best, allowed or not"


def test_a_row_whose_tokens_are_all_blocked_is_told_and_draws_token_0() -> None:
    settings = [SeatSampling(temperature=0.0), SeatSampling(temperature=1.0), SeatSampling(temperature=1.0, top_k=3)]
    settings += [SeatSampling(temperature=1.0, top_p=0.5), SeatSampling(temperature=1.0, min_p=0.5)]
    drawing = Drawing(settings, 2000, random.Random(0))
    drawing.allowed[:] = 0
    drawing.step.sample_masks[: len(settings)] = 0
    assert drawn_tokens(drawing, torch.randn(len(settings), 2000)) == [0] * len(settings)
    assert torch.isneginf(drawing.drawn.best_scores[: len(settings)]).all()


def test_more_tokens_than_are_allowed_may_be_kept() -> None:
    settings = [
        SeatSampling(temperature=1.0, top_k=50, top_p=top_p, seed=seed) for top_p in (1, 0.7) for seed in (1, 2)
    ]
    drawing = Drawing(settings, 2000, random.Random(0))
    drawing.allowed[:] = 0
    drawing.allowed[:, 40] = 0b1011 << 5
    drawing.step.sample_masks[: len(settings)] = 0
    logits = torch.randn(len(settings), 2000)
    masked = torch.full_like(logits, -torch.inf)
    for token in (1285, 1286, 1288):
        masked[:, token] = logits[:, token]
    expected = reference_sampling.sample(masked, drawing.reference).token_ids.tolist()
    assert drawn_tokens(drawing, logits) == expected


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_told_and_draw_a_token_of_the_vocabulary(bad: float) -> None:
    rng = random.Random(0)
    drawing = Drawing([random_sampling(rng, 1500) for _ in range(10)], 1500, rng)
    logits = torch.randn(10, 1500)
    logits[::2, 1400:1410] = bad
    logits[1::2] = bad
    tokens = drawn_tokens(drawing, logits)
    assert all(0 <= token < 1500 for token in tokens)
    torch.testing.assert_close(drawing.drawn.best_logits[:10], logits.amax(-1), rtol=0, atol=0, equal_nan=True)
