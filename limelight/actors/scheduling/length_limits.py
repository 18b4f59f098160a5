"""How long a sequence can get: refused at once if it can't draw what it should, otherwise a fixed number of tokens.

The limit doesn't depend on what else runs: a sequence that needs more pages than are free waits for them, so that only
one which outgrows the whole pool ends early.
"""

from limelight.actors.scheduling.sequence import Sequence
from limelight.errors import ContextLengthExceeded, InvalidRequest
from limelight.step import Capacity

KV_CACHE_FULL = "kv_cache_full"
"""`finish_details` of a sequence that has outgrown the whole KV pool."""


def set_limits(sequence: Sequence, capacity: Capacity) -> None:
    """Set `max_length` and `limit_details`: `max_tokens`, clamped to the context and to the pool.

    Raises:
        InvalidRequest: the prompt is empty.
        ContextLengthExceeded: not even one token could be drawn, in the context or in the whole KV pool, or the prompt
            of a sequence that draws none does not fit.
    """
    num_prompt_tokens = sequence.num_prompt_tokens
    context = capacity.max_model_len
    num_slots = capacity.num_pages * capacity.page_size
    if not num_prompt_tokens:
        raise InvalidRequest("the prompt has 0 tokens; at least 1 is needed")
    num_drawn, for_output = (1, ", at least 1 of which is for the output") if sequence.draws else (0, "")
    too_long = num_prompt_tokens + num_drawn - context
    if too_long > 0:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens, but the context length is {context} tokens{for_output}; "
            f"shorten the prompt by {too_long} tokens or more"
        )
    too_long = num_prompt_tokens + num_drawn - num_slots
    if too_long > 0:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens, but the whole KV cache holds {num_slots} tokens{for_output}; "
            f"shorten the prompt by {too_long} tokens or more, or run the engine with a larger kv_cache_bytes"
        )
    if not sequence.draws:
        sequence.max_length = num_prompt_tokens + 1  # which is never reached: the sequence ends with its prompt
        return
    wanted = context if sequence.max_tokens is None else min(context, num_prompt_tokens + sequence.max_tokens)
    # The last token is drawn but never computed, so it needs no slot.
    sequence.max_length = min(wanted, num_slots + 1)
    sequence.limit_details = KV_CACHE_FULL if num_slots + 1 < wanted else None
