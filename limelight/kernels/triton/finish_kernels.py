"""Device code that says how far guesses were right, and leaves what the next step needs in the seats."""

import triton
import triton.language as tl

from limelight.kernels.triton import seat_kernels as seats_of


@triton.jit(do_not_specialize=["seat_words", "vocab_size", "most_chunks"])
def finish_kernel(
    drawing_seats,
    drawing_first,
    drawing_drafts,
    sample_rows,
    row_token_ids,
    seats,
    seat_words,
    counts,
    vocab_size,
    token_ids,
    num_accepted,
    most_chunks,
    BLOCK: tl.constexpr,
):
    """Programs: blocks of chunks that draw; no two of them have the same seat."""
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seat_number = tl.load(drawing_seats + entries, mask=entries < most_chunks, other=seats_of.NOBODY)
    present = seat_number != seats_of.NOBODY
    seat = seats + seat_number.to(tl.int64) * seat_words
    first = tl.load(drawing_first + entries, mask=present, other=0)
    num_drafts = tl.load(drawing_drafts + entries, mask=present, other=0)
    most_drafts = tl.max(num_drafts, axis=0)

    agrees = present
    accepted = tl.zeros([BLOCK], tl.int32)
    for draft in range(most_drafts):
        agrees = agrees & (draft < num_drafts)
        row = tl.load(sample_rows + first + draft, mask=agrees, other=0)
        guess = tl.load(row_token_ids + row + 1, mask=agrees, other=0)
        agrees = agrees & (tl.load(token_ids + first + draft, mask=agrees, other=0) == guess)
        accepted += agrees.to(tl.int32)
    tl.store(num_accepted + entries, accepted, mask=present)
    tl.store(seat + seats_of.LAST_TOKEN, tl.load(token_ids + first + accepted, mask=present, other=0), mask=present)

    counted = present & (tl.load(seat + seats_of.HAS_PENALTIES, mask=present, other=0) != 0)
    counts += seat_number.to(tl.int64) * vocab_size
    for draft in range(most_drafts + 1):
        kept = counted & (draft <= accepted)
        token = tl.load(token_ids + first + draft, mask=kept, other=0)
        tl.atomic_add(counts + token, 1, mask=kept)
