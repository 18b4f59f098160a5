"""Seats with sampling settings, for the kernels and for the reference."""

import random

import numpy as np
import torch

from limelight.kernels.interface import SamplingBatch
from limelight.kernels.triton.step_memory import (
    FLOAT_FIELDS,
    IN_PROMPT,
    INTEGER_FIELDS,
    DrawBatch,
    DrawnWords,
    SeatWords,
    StepLimits,
    StepWords,
    drawn_words,
)
from limelight.models.drawing import LEAST_REPETITION_PENALTY
from limelight.models.sampling_seats import SamplingSeats
from limelight.step import SeatSampling, SeatTaken
from tests.kernels.triton.step_buffers import GARBAGE, empty_step, seat_words


def random_sampling(rng: random.Random, vocab_size: int) -> SeatSampling:
    """Every setting is on about half of the time; often at the edge of its range."""

    def maybe(value: float, default: float) -> float:
        return value if rng.random() < 0.5 else default

    bias = {rng.randrange(vocab_size + 5): rng.choice([-100.0, 5.0, rng.uniform(-3, 3)]) for _ in range(40)}
    return SeatSampling(
        temperature=rng.choice([0.0, 0.3, 1.0, 1.7]),
        top_p=maybe(rng.choice([0.0, 0.1, 0.5, 0.9, 0.999]), 1.0),
        top_k=int(maybe(rng.choice([1, 2, 20, vocab_size // 2, vocab_size - 1, vocab_size, 10 * vocab_size]), 0)),
        min_p=maybe(rng.choice([1.0, 0.5, 0.05, 1e-4]), 0.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        repetition_penalty=maybe(rng.choice([0.7, 1.3, LEAST_REPETITION_PENALTY]), 1.0),
        seed=rng.randrange(-(2**63), 2**63),
        logit_bias=bias if rng.random() < 0.4 else None,
        blocked_token_ids=tuple(rng.sample(range(vocab_size), min(30, vocab_size - 1))) if rng.random() < 0.4 else (),
        blocked_below_position=rng.choice([0, 50, 1000]),
    )


def write_seat(seats: SeatWords, taken: SeatTaken) -> None:
    """What a host writes when the seat is taken."""
    settings, vocab_size = taken.sampling, seats.counts.shape[1]
    blocked = sorted({token for token in settings.blocked_token_ids if token < vocab_size})
    bias = sorted((token, value) for token, value in (settings.logit_bias or {}).items() if token < vocab_size)
    seed = settings.seed & (2**64 - 1)
    integers = {
        "last_token": 0,
        "top_k": min(settings.top_k, vocab_size),
        "seed_low": seed & 0xFFFFFFFF,
        "seed_high": seed >> 32,
        "has_penalties": int(settings.has_penalties),
        "num_blocked": len(blocked),
        "blocked_below_position": settings.blocked_below_position,
        "num_bias": len(blocked) + len(bias),
    }
    fields = [np.uint32(integers[name]).view(np.int32) for name in INTEGER_FIELDS]
    fields += [np.float32(getattr(settings, name)).view(np.int32) for name in FLOAT_FIELDS]
    words, layout = seats.words[taken.seat], seats.layout
    words[: len(fields)] = torch.tensor(fields)
    ids = [*blocked, *(token for token, _ in bias)]
    words[layout.bias_ids : layout.bias_ids + len(ids)] = torch.tensor(ids, dtype=torch.int32)
    values = torch.tensor([-np.inf] * len(blocked) + [value for _, value in bias], dtype=torch.float32)
    words[layout.bias_values : layout.bias_values + len(ids)] = values.view(torch.int32)
    if settings.has_penalties:
        counts = torch.bincount(torch.tensor(taken.output_token_ids, dtype=torch.int64), minlength=vocab_size)
        counts[torch.tensor(taken.prompt_token_ids, dtype=torch.int64).unique()] += IN_PROMPT
        seats.counts[taken.seat] = counts.to(torch.int32)


class Drawing:
    """One seat per setting, and a step in which each draws a row.

    Attributes:
        reference: what the reference draws by.
    """

    def __init__(self, settings: list[SeatSampling], vocab_size: int, rng: random.Random) -> None:
        num_seats = len(settings)
        self.seats = seat_words(num_seats, 2, vocab_size)
        self.seats.words[:] = GARBAGE
        self.seats.counts[:] = GARBAGE
        reference = SamplingSeats(num_seats, vocab_size, "cpu")
        for seat, sampling in enumerate(settings):
            tokens = [tuple(rng.choices(range(vocab_size), k=60)) for _ in range(2)] if sampling.has_penalties else []
            taken = SeatTaken(seat=seat, sampling=sampling, num_prompt_tokens=60)
            if tokens:
                taken = SeatTaken(
                    seat=seat,
                    sampling=sampling,
                    num_prompt_tokens=60,
                    prompt_token_ids=tokens[0],
                    output_token_ids=tokens[1],
                )
            write_seat(self.seats, taken)
            reference.take(taken)
        self.positions = [rng.randrange(100) for _ in settings]
        self.reference: SamplingBatch = reference.gather(list(range(num_seats)), self.positions)
        limits = StepLimits(rows=num_seats + 3, chunks=num_seats, sampled=num_seats + 3, patches=1)
        self.step: StepWords = empty_step(limits)
        self.step.sample_seats[:num_seats] = torch.arange(num_seats)
        self.step.sample_positions[:num_seats] = torch.tensor(self.positions)
        self.drawn = DrawnWords(torch.full((drawn_words(limits),), GARBAGE, dtype=torch.int32), limits)
        self.allowed = torch.full((num_seats, -(-vocab_size // 32)), GARBAGE, dtype=torch.int32)

    def batch(self, num_sampled: int) -> DrawBatch:
        return DrawBatch(self.step, self.seats, num_sampled, self.allowed, self.step.token_ids)
