"""Words of a seat as constants of device code, and how they are read."""

import triton
import triton.language as tl

from limelight.kernels.triton import step_memory

_LAYOUT = step_memory.SeatLayout(max_pages=0)

LAST_TOKEN = tl.constexpr(_LAYOUT.word_of("last_token"))
TOP_K = tl.constexpr(_LAYOUT.word_of("top_k"))
SEED_LOW = tl.constexpr(_LAYOUT.word_of("seed_low"))
SEED_HIGH = tl.constexpr(_LAYOUT.word_of("seed_high"))
HAS_PENALTIES = tl.constexpr(_LAYOUT.word_of("has_penalties"))
NUM_BLOCKED = tl.constexpr(_LAYOUT.word_of("num_blocked"))
BLOCKED_BELOW_POSITION = tl.constexpr(_LAYOUT.word_of("blocked_below_position"))
NUM_BIAS = tl.constexpr(_LAYOUT.word_of("num_bias"))
TEMPERATURE = tl.constexpr(_LAYOUT.word_of("temperature"))
TOP_P = tl.constexpr(_LAYOUT.word_of("top_p"))
MIN_P = tl.constexpr(_LAYOUT.word_of("min_p"))
REPETITION_PENALTY = tl.constexpr(_LAYOUT.word_of("repetition_penalty"))
PRESENCE_PENALTY = tl.constexpr(_LAYOUT.word_of("presence_penalty"))
FREQUENCY_PENALTY = tl.constexpr(_LAYOUT.word_of("frequency_penalty"))
BIAS_IDS = tl.constexpr(_LAYOUT.bias_ids)
BIAS_VALUES = tl.constexpr(_LAYOUT.bias_values)
PAGES = tl.constexpr(_LAYOUT.pages)
NOBODY = tl.constexpr(step_memory.NOBODY)


@triton.jit
def float_field(seat, WORD: tl.constexpr):
    """A float of the seat at a pointer to its words."""
    return tl.load(seat + WORD).to(tl.float32, bitcast=True)
