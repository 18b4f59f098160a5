"""Device code that turns logits into what tokens are drawn by, and finds the best token of every tile of the
vocabulary: with noise, too, where a row has a temperature. A row without cuts needs no more than that.
"""

import triton
import triton.language as tl

from limelight.kernels.triton import seat_kernels as seats_of
from limelight.kernels.triton import step_memory
from limelight.kernels.triton.noise_kernels import WORD_MASK, gumbel, noise_key, noise_words
from limelight.kernels.triton.seat_kernels import float_field

IN_PROMPT = tl.constexpr(step_memory.IN_PROMPT)
NUM_HALVINGS = tl.constexpr(step_memory.MAX_BIAS.bit_length())
NOISE_SLACK = tl.constexpr(1e-3)
"""More than rounding can make the noise of a word larger than that of a smaller one."""


@triton.jit
def best_or_nan(values):
    """The largest of `values` [n], NaN if one is."""
    is_nan = values != values
    best = tl.max(tl.where(is_nan, float("-inf"), values), axis=0)
    return tl.where(tl.max(is_nan.to(tl.int32), axis=0) > 0, float("nan"), best)


@triton.jit
def has_cut(seat, vocab_size):
    """Whether the seat leaves out some tokens that are not good enough."""
    top_k = tl.load(seat + seats_of.TOP_K)
    return (
        ((top_k > 0) & (top_k < vocab_size))
        | (float_field(seat, seats_of.TOP_P) < 1)
        | (float_field(seat, seats_of.MIN_P) > 0)
    )


@triton.jit
def penalised(scores, counts, seat):
    """Repetition penalty over prompt and output, then presence and frequency over output."""
    repetition = float_field(seat, seats_of.REPETITION_PENALTY)
    num_drawn = counts & (IN_PROMPT - 1)
    repeated = tl.where(scores > 0, tl.div_rn(scores, repetition), scores * repetition)
    scores = tl.where(counts > 0, repeated, scores)
    frequency = float_field(seat, seats_of.FREQUENCY_PENALTY) * num_drawn.to(tl.float32)
    presence = float_field(seat, seats_of.PRESENCE_PENALTY) * (num_drawn > 0).to(tl.float32)
    return scores - frequency - presence


@triton.jit
def find(ids, first, end, tokens):
    """Where `tokens` stand among the ascending `ids` from number `first` to `end`, and whether they do."""
    low = tl.zeros_like(tokens) + first
    high = tl.zeros_like(tokens) + end
    for _ in range(NUM_HALVINGS):
        middle = (low + high) // 2
        is_open = low < high
        below = tl.load(ids + middle, mask=is_open, other=0) < tokens
        low = tl.where(is_open & below, middle + 1, low)
        high = tl.where(is_open & (below == 0), middle, high)
    return low, (low < end) & (tl.load(ids + low, mask=low < end, other=-1) == tokens)


@triton.jit
def biased(scores, tokens, seat, position):
    """Minus infinity for blocked tokens, and what others get on top."""
    num_blocked, num_bias = tl.load(seat + seats_of.NUM_BLOCKED), tl.load(seat + seats_of.NUM_BIAS)
    ids = seat + seats_of.BIAS_IDS
    at, found = find(ids, num_blocked, num_bias, tokens)
    scores += tl.load(seat + seats_of.BIAS_VALUES + at, mask=found, other=0).to(tl.float32, bitcast=True)
    if position < tl.load(seat + seats_of.BLOCKED_BELOW_POSITION):
        _, is_blocked = find(ids, 0, num_blocked, tokens)
        scores = tl.where(is_blocked, float("-inf"), scores)
    return scores


@triton.jit(
    do_not_specialize=["tiles_of_program"],
    # Parts of one tensor, which lie otherwise in every step.
    do_not_specialize_on_alignment=["best_logits", "best_scores", "best_tokens", "noisy_scores", "noisy_tokens"],
)
def score_kernel(
    sample_seats,
    sample_positions,
    sample_masks,
    seats,
    seat_words,
    counts,
    allowed,
    mask_words,
    logits,
    scores,
    vocab_size,
    num_tiles,
    tiles_of_program,
    best_logits,
    best_scores,
    best_tokens,
    noisy_scores,
    noisy_tokens,
    TILE: tl.constexpr,
):
    """Programs: sampled rows, and parts of the vocabulary.

    Args:
        logits, scores: [sampled, vocab]; scores are written for rows with cuts alone.
        best_logits to noisy_tokens: [sampled, tiles]; NaN if a logit is. The noisy best is minus infinity where a
            better one is in an earlier tile of the program.
    """
    row = tl.program_id(0)
    seat_number = tl.load(sample_seats + row)
    if seat_number == seats_of.NOBODY:
        return
    seat = seats + seat_number.to(tl.int64) * seat_words
    position, mask_row = tl.load(sample_positions + row), tl.load(sample_masks + row)
    temperature = float_field(seat, seats_of.TEMPERATURE)
    has_penalties, num_bias = tl.load(seat + seats_of.HAS_PENALTIES), tl.load(seat + seats_of.NUM_BIAS)
    is_random = temperature > 0
    keeps_scores = is_random & has_cut(seat, vocab_size)
    first, second = noise_key(tl.load(seat + seats_of.SEED_LOW), tl.load(seat + seats_of.SEED_HIGH), position)
    logits += row.to(tl.int64) * vocab_size
    scores += row.to(tl.int64) * vocab_size
    counts += seat_number.to(tl.int64) * vocab_size
    allowed += mask_row.to(tl.int64) * mask_words

    best_so_far = float("-inf")
    first_tile = tl.program_id(1) * tiles_of_program
    for tile in range(first_tile, tl.minimum(first_tile + tiles_of_program, num_tiles)):
        tokens = tile * TILE + tl.arange(0, TILE)
        inside = tokens < vocab_size
        score = tl.load(logits + tokens, mask=inside, other=float("-inf"))
        out = row * num_tiles + tile
        tl.store(best_logits + out, best_or_nan(score))
        if has_penalties != 0:
            score = penalised(score, tl.load(counts + tokens, mask=inside, other=0), seat)
        if num_bias > 0:
            score = biased(score, tokens, seat, position)
        if mask_row != seats_of.NOBODY:
            bits = tl.load(allowed + tokens // 32, mask=inside, other=0)
            score = tl.where((bits >> (tokens % 32)) & 1 != 0, score, float("-inf"))
        if is_random:
            score = tl.div_rn(score, temperature)
        # No NaN, and one zero, so that the order of scores is that of their bits.
        score = tl.where(score != score, float("-inf"), tl.where(score == 0, 0.0, score))
        best, place = tl.max(score, axis=0, return_indices=True)
        tl.store(best_scores + out, best)
        tl.store(best_tokens + out, tile * TILE + place)
        if keeps_scores:
            tl.store(scores + tokens, score, mask=inside)
        if is_random:
            words = tl.where(inside, noise_words(tokens, first, second), WORD_MASK)
            noisy_best, noisy_place = float("-inf"), 0
            if best + gumbel(tl.min(words, axis=0)) + NOISE_SLACK > best_so_far:
                noisy_best, noisy_place = tl.max(score + gumbel(words), axis=0, return_indices=True)
                best_so_far = tl.maximum(best_so_far, noisy_best)
            tl.store(noisy_scores + out, noisy_best)
            tl.store(noisy_tokens + out, tile * TILE + noisy_place)
