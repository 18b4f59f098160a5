"""Device code that settles what each row draws, from the best tokens of its tiles and, where the row has cuts, its
scores.

No row is sorted. The score of the k-th best token is found by histograms of ever narrower ranges. For top_p no
threshold is searched at all: the token with the largest noisy score is in the nucleus if those better than it weigh
less than `top_p`; if not, it and all that are no better are out, and the next one is tried (the rejection of Ye et al.
2025, arXiv 2501.01005, with noise that stays the same from try to try, so that the result is that of a sorted row).
"""

import triton
import triton.language as tl

from limelight.kernels.triton import seat_kernels as seats_of
from limelight.kernels.triton.noise_kernels import WORD_MASK, gumbel, noise_key, noise_words
from limelight.kernels.triton.score_kernels import NOISE_SLACK, best_or_nan, has_cut
from limelight.kernels.triton.seat_kernels import float_field

NUM_BINS = tl.constexpr(512)
LAST_KEY = tl.constexpr(0xFFFFFFFF)
NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def key_of(scores):
    """uint32 in the order of float32 `scores`, which are no NaN."""
    bits = scores.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def kth_largest(keys, k):
    """Of uint32 keys [n], k <= n: bit by bit from the top."""
    largest = tl.zeros([], tl.uint32)
    for bit in range(32):
        trial = largest | (tl.full([], 0x80000000, tl.uint32) >> bit)
        if tl.sum((keys >= trial).to(tl.int32), axis=0) >= k:
            largest = trial
    return largest


@triton.jit
def list_tiles(best_keys, bound, listed, num_tiles, TILES: tl.constexpr):
    """Write the numbers of tiles whose best key is at least `bound` to `listed`, ascending, and count them."""
    tiles = tl.arange(0, TILES)
    chosen = (tiles < num_tiles) & (best_keys >= bound)
    ends = tl.cumsum(chosen.to(tl.int32), axis=0)
    tl.store(listed + ends - 1, tiles, mask=chosen)
    tl.debug_barrier()
    return tl.max(ends, axis=0)


@triton.jit
def load_tiles(scores, listed, first, num_listed, vocab_size, TILE: tl.constexpr, GROUP: tl.constexpr):
    """Tokens, scores (minus infinity where none is) and which there are, of GROUP listed tiles: [GROUP, TILE] each."""
    group = first + tl.arange(0, GROUP)
    tiles = tl.load(listed + group, mask=group < num_listed, other=0)
    tokens = tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]
    inside = (group < num_listed)[:, None] & (tokens < vocab_size)
    return tokens, tl.load(scores + tokens, mask=inside, other=float("-inf")), inside


@triton.jit
def key_of_kth(scores, listed, num_listed, k, low, high, vocab_size, TILE: tl.constexpr, GROUP: tl.constexpr):
    """Key of the k-th largest score, which is from `low` to `high`; the listed tiles hold all from `low` on."""
    while low < high:
        shift = 0
        while ((high - low) >> shift) >= NUM_BINS:
            shift += 1
        counts = tl.zeros([NUM_BINS], tl.int32)
        for first in range(0, num_listed, GROUP):
            _, score, inside = load_tiles(scores, listed, first, num_listed, vocab_size, TILE, GROUP)
            keys = key_of(score)
            within = inside & (keys >= low) & (keys <= high)
            bins = tl.where(within, (keys - low) >> shift, 0).to(tl.int32)
            counts += tl.histogram(tl.reshape(bins, [GROUP * TILE]), NUM_BINS, mask=tl.reshape(within, [GROUP * TILE]))
        at_least = tl.cumsum(counts, axis=0, reverse=True)
        chosen = tl.sum((at_least >= k).to(tl.int32), axis=0) - 1
        k -= tl.sum(tl.where(tl.arange(0, NUM_BINS) == chosen, at_least - counts, 0), axis=0)
        low += chosen.to(tl.uint32) << shift
        high = tl.minimum(high, low + ((tl.full([], 1, tl.uint32) << shift) - 1))
    return low


@triton.jit
def weights_from(scores, listed, num_listed, low, high, best, vocab_size, TILE: tl.constexpr, GROUP: tl.constexpr):
    """Sums of exp(score - best) of the listed tiles: where the key is at least `low`, and where it is above `high`."""
    from_low = tl.zeros([GROUP, TILE], tl.float32)
    above_high = tl.zeros([GROUP, TILE], tl.float32)
    for first in range(0, num_listed, GROUP):
        _, score, _ = load_tiles(scores, listed, first, num_listed, vocab_size, TILE, GROUP)
        keys, weights = key_of(score), tl.exp(score - best)
        from_low += tl.where(keys >= low, weights, 0.0)
        above_high += tl.where(keys > high, weights, 0.0)
    return tl.sum(from_low), tl.sum(above_high)


@triton.jit
def best_noisy(
    scores, listed, num_listed, floor, noise_first, noise_second, vocab_size, TILE: tl.constexpr, GROUP: tl.constexpr
):
    """The token with the largest noisy score among those with keys from `floor` on; of equal ones the first."""
    best, token = float("-inf"), 0
    for first in range(0, num_listed, GROUP):
        tokens, score, inside = load_tiles(scores, listed, first, num_listed, vocab_size, TILE, GROUP)
        alive = inside & (key_of(score) >= floor)
        score = tl.where(alive, score, float("-inf"))
        words = tl.where(alive, noise_words(tokens, noise_first, noise_second), WORD_MASK)
        if tl.max(score) + gumbel(tl.min(words)) + NOISE_SLACK > best:
            noisy = score + gumbel(words)
            best_here = tl.max(noisy)
            if best_here > best:
                best = best_here
                token = tl.min(tl.where(noisy == best_here, tokens, NO_TOKEN))
    return token


@triton.jit
def draw_with_cuts(
    seat,
    position,
    scores,
    token,
    best_of_tiles,
    best,
    listed,
    vocab_size,
    num_tiles,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The token with the largest noisy score that no cut leaves out, if `token` has that of all; `best` is finite."""
    top_k, top_p, min_p = (
        tl.load(seat + seats_of.TOP_K),
        float_field(seat, seats_of.TOP_P),
        float_field(seat, seats_of.MIN_P),
    )
    noise_first, noise_second = noise_key(
        tl.load(seat + seats_of.SEED_LOW), tl.load(seat + seats_of.SEED_HIGH), position
    )
    best_keys = key_of(best_of_tiles)
    best_key = key_of(best)
    lowest = key_of(tl.full([], float("-inf"), tl.float32))

    min_p_floor = lowest
    if min_p > 0:
        min_p_floor = key_of(tl.minimum(best + tl.log(min_p), best))
    has_top_k = (top_k > 0) & (top_k < vocab_size)
    bound = min_p_floor
    if has_top_k:
        bound = lowest
        if top_k <= num_tiles:
            # As many tokens are the best of a tile, and at least that good.
            bound = kth_largest(best_keys, top_k)
    elif top_p < 1:
        bound = lowest
    num_listed = list_tiles(best_keys, bound, listed, num_tiles, TILES)

    top_k_floor = lowest
    if has_top_k:
        top_k_floor = key_of_kth(scores, listed, num_listed, top_k, bound, best_key, vocab_size, TILE, GROUP)
    floor = tl.maximum(top_k_floor, min_p_floor)
    key = key_of(tl.load(scores + token))
    if key < floor:
        token = best_noisy(scores, listed, num_listed, floor, noise_first, noise_second, vocab_size, TILE, GROUP)
        key = key_of(tl.load(scores + token))
    if top_p < 1:
        total, better = weights_from(scores, listed, num_listed, top_k_floor, key, best, vocab_size, TILE, GROUP)
        while (key < best_key) & (better >= top_p * total):
            token = best_noisy(scores, listed, num_listed, key + 1, noise_first, noise_second, vocab_size, TILE, GROUP)
            key = key_of(tl.load(scores + token))
            _, better = weights_from(scores, listed, num_listed, LAST_KEY, key, best, vocab_size, TILE, GROUP)
    return token


@triton.jit(
    # Parts of one tensor, which lie otherwise in every step.
    do_not_specialize_on_alignment=[
        "best_logits",
        "best_scores",
        "best_tokens",
        "noisy_scores",
        "noisy_tokens",
        "listed",
    ]
)
def draw_kernel(
    sample_seats,
    sample_positions,
    seats,
    seat_words,
    scores,
    vocab_size,
    num_tiles,
    best_logits,
    best_scores,
    best_tokens,
    noisy_scores,
    noisy_tokens,
    listed,
    token_ids,
    best_logit_of_row,
    best_score_of_row,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Programs: sampled rows. `listed` is memory for [sampled, tiles] numbers; the rest as `score_kernel` leaves it."""
    row = tl.program_id(0)
    seat_number = tl.load(sample_seats + row)
    if seat_number == seats_of.NOBODY:
        return
    seat = seats + seat_number.to(tl.int64) * seat_words
    tiles = row * num_tiles + tl.arange(0, TILES)
    inside = tl.arange(0, TILES) < num_tiles
    logit = tl.load(best_logits + tiles, mask=inside, other=float("-inf"))
    tl.store(best_logit_of_row + row, best_or_nan(logit))

    best_of_tiles = tl.load(best_scores + tiles, mask=inside, other=float("-inf"))
    best, best_tile = tl.max(best_of_tiles, axis=0, return_indices=True)
    tl.store(best_score_of_row + row, best)
    token = tl.load(best_tokens + row * num_tiles + best_tile)
    if float_field(seat, seats_of.TEMPERATURE) > 0:
        noisy = tl.load(noisy_scores + tiles, mask=inside, other=float("-inf"))
        _, noisy_tile = tl.max(noisy, axis=0, return_indices=True)
        token = tl.load(noisy_tokens + row * num_tiles + noisy_tile)
        if has_cut(seat, vocab_size) & (tl.abs(best) < float("inf")):
            token = draw_with_cuts(
                seat,
                tl.load(sample_positions + row),
                scores + row.to(tl.int64) * vocab_size,
                token,
                best_of_tiles,
                best,
                listed + row * num_tiles,
                vocab_size,
                num_tiles,
                TILES,
                TILE,
                GROUP,
            )
    tl.store(token_ids + row, token)
