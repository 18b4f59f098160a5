"""Sampling settings as the first words of a seat, and the counts that penalties start from. What settings mean is as in
`sampling_seats.py`.
"""

import numpy as np
from numpy.typing import NDArray

from limelight.generation import GREEDY_TEMPERATURE, MIN_TEMPERATURE
from limelight.kernels.triton.step_memory import FLOAT_FIELDS, IN_PROMPT, INTEGER_FIELDS, MAX_BIAS
from limelight.models.drawing import LEAST_REPETITION_PENALTY
from limelight.step import SeatSampling, SeatTaken

Words = NDArray[np.int32]
INT32_MAX = 2**31 - 1


def settings_words(settings: SeatSampling, vocab_size: int) -> list[tuple[int, Words]]:
    """First word in the seat, and words: the integers and the floats, and the biases if there are any.

    Token ids outside the vocabulary can never be drawn: their bias and block have no effect. Of too many biases the
    first are kept; see `is_biased_beyond`.
    """
    token_ids, values, num_blocked = _all_bias(settings, vocab_size)
    token_ids, values, num_blocked = token_ids[:MAX_BIAS], values[:MAX_BIAS], min(num_blocked, MAX_BIAS)
    seed = settings.seed & (2**64 - 1)
    integers = {
        "last_token": 0,
        "top_k": min(max(settings.top_k, 0), vocab_size),
        "seed_low": seed & 0xFFFFFFFF,
        "seed_high": seed >> 32,
        "has_penalties": int(settings.has_penalties),
        "num_blocked": num_blocked,
        "blocked_below_position": min(settings.blocked_below_position, INT32_MAX),
        "num_bias": len(token_ids),
    }
    greedy = settings.temperature < GREEDY_TEMPERATURE
    floats = {
        "temperature": 0.0 if greedy else max(settings.temperature, MIN_TEMPERATURE),
        "top_p": settings.top_p,
        "min_p": settings.min_p,
        "repetition_penalty": max(settings.repetition_penalty, LEAST_REPETITION_PENALTY),
        "presence_penalty": settings.presence_penalty,
        "frequency_penalty": settings.frequency_penalty,
    }
    fields = np.concatenate(
        (
            np.array([integers[name] for name in INTEGER_FIELDS], np.uint32).view(np.int32),
            np.array([floats[name] for name in FLOAT_FIELDS], np.float32).view(np.int32),
        )
    )
    if not token_ids:
        return [(0, fields)]
    first = len(fields)
    return [
        (0, np.concatenate((fields, np.array(token_ids, np.int32)))),
        (first + MAX_BIAS, np.array(values, np.float32).view(np.int32)),
    ]


def is_biased_beyond(settings: SeatSampling, vocab_size: int) -> bool:
    """Whether there are more biases than a seat holds."""
    listed = len(settings.blocked_token_ids) + len(settings.logit_bias or ())
    return listed > MAX_BIAS and len(_all_bias(settings, vocab_size)[0]) > MAX_BIAS


def too_much_bias(settings: SeatSampling) -> str:
    """Why such a sequence is lost."""
    return (
        f"logit_bias and the tokens that may not end the text yet name {len(settings.logit_bias or ()):,} and "
        f"{len(settings.blocked_token_ids):,} tokens; on a GPU they may be {MAX_BIAS:,} together"
    )


def starting_counts(taken: SeatTaken, counts: Words) -> None:
    """Fill `counts` [vocab] for a seat with penalties, as `SeatWords.counts` says."""
    counts[:] = np.bincount(np.asarray(taken.output_token_ids, np.int64), minlength=len(counts))
    counts[np.asarray(taken.prompt_token_ids, np.int64)] |= IN_PROMPT


def _all_bias(settings: SeatSampling, vocab_size: int) -> tuple[list[int], list[float], int]:
    """Token ids, what they get, and how many of them are blocked: these come first. Both parts ascend."""
    blocked = sorted({token for token in settings.blocked_token_ids if token < vocab_size})
    bias = sorted((token, value) for token, value in (settings.logit_bias or {}).items() if token < vocab_size)
    token_ids = blocked + [token for token, _ in bias]
    return token_ids, [-np.inf] * len(blocked) + [value for _, value in bias], len(blocked)
