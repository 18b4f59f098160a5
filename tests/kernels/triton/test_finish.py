import random

import pytest
import torch

from limelight.kernels.triton.sampling import finish
from limelight.kernels.triton.seat_kernels import HAS_PENALTIES
from limelight.kernels.triton.step_memory import IN_PROMPT, DrawBatch, DrawnWords, StepLimits, drawn_words
from limelight.models.sampler import _accept
from limelight.step import Chunk
from tests.kernels.triton.step_buffers import GARBAGE, empty_step, fill_chunks, seat_words

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_SEATS, VOCAB_SIZE = 7, 4
"""So few tokens that guesses are often right, and that one is drawn twice."""
LIMITS = StepLimits(rows=64, chunks=NUM_SEATS, sampled=64, patches=1)


def tokens(rng: random.Random, number: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB_SIZE) for _ in range(number))


@pytest.mark.parametrize("case", range(10))
def test_guesses_count_as_far_as_they_agree(case: int) -> None:
    rng = random.Random(case)
    chunks = []
    for seat in rng.sample(range(NUM_SEATS), rng.randint(1, NUM_SEATS)):
        num_drafts = rng.choice([0, 0, 1, 4])
        num_tokens = num_drafts + rng.randint(1, 3)
        chunks.append(
            Chunk(
                seat=seat,
                start=rng.randrange(100),
                num_tokens=num_tokens,
                token_ids=tokens(rng, num_tokens),
                sample=rng.random() < 0.8,
                num_drafts=num_drafts,
            )
        )
    drawing = [chunk for chunk in chunks if chunk.sample]
    num_sampled = sum(chunk.num_drafts + 1 for chunk in drawing)
    drawn_ids = tokens(rng, num_sampled)

    step, seats = empty_step(LIMITS), seat_words(NUM_SEATS, 2, VOCAB_SIZE)
    fill_chunks(step, chunks)
    penalised = [rng.random() < 0.5 for _ in range(NUM_SEATS)]
    seats.words[:, HAS_PENALTIES.value] = torch.tensor(penalised, dtype=torch.int32)
    seats.last_tokens[:] = GARBAGE
    seats.counts[:] = IN_PROMPT
    drawn = DrawnWords(torch.full((drawn_words(LIMITS),), GARBAGE, dtype=torch.int32), LIMITS)
    drawn.token_ids[:num_sampled] = torch.tensor(drawn_ids)
    finish(DrawBatch(step, seats, num_sampled, torch.zeros(1, 1, dtype=torch.int32), step.token_ids), drawn)

    last_tokens = [GARBAGE] * NUM_SEATS
    counts = torch.full((NUM_SEATS, VOCAB_SIZE), IN_PROMPT, dtype=torch.int32)
    accepted: list[int] = []
    if drawing:
        last, num_accepted = _accept(torch.tensor(drawn_ids), drawing)
        accepted, first = num_accepted.tolist(), 0
        for chunk, token, number in zip(drawing, last.tolist(), accepted, strict=True):
            last_tokens[chunk.seat] = token
            if penalised[chunk.seat]:
                for kept in drawn_ids[first : first + number + 1]:
                    counts[chunk.seat, kept] += 1
            first += chunk.num_drafts + 1
    assert seats.last_tokens.tolist() == last_tokens
    assert torch.equal(seats.counts, counts)
    assert drawn.num_accepted.tolist() == accepted + [GARBAGE] * (NUM_SEATS - len(accepted))
