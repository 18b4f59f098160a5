"""The scripted executor keeps to masks as the real ones do."""

from typing import Any

import pytest

from limelight.step import Capacity, Chunk, Sampled, SeatSampling, SeatTaken, Step
from limelight.testing import VOCAB_SIZE
from limelight.testing.executor import MASK_BYTES, ScriptedExecutor

CAPACITY = Capacity(
    num_pages=8, page_size=8, num_seats=4, max_num_batched_tokens=32, max_model_len=64, vocab_size=VOCAB_SIZE
)


def only(token_ids: bytes) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(MASK_BYTES, "little")


def draw(mask: bytes | None, guesses: bytes = b"", **sampling: Any) -> Sampled:
    """What a masked chunk draws of which the script makes "abcdef"."""
    executor = ScriptedExecutor("abcdef", CAPACITY, None, 0.0)
    taken = SeatTaken(seat=1, sampling=SeatSampling(temperature=0.0, **sampling), num_prompt_tokens=2)
    chunk = Chunk(
        seat=1,
        start=0,
        num_tokens=2 + len(guesses),
        token_ids=(1, 2, *guesses),
        new_pages=(0,),
        sample=True,
        num_drafts=len(guesses),
        masked=True,
    )
    wait = executor.submit(Step(number=0, chunks=(chunk,), taken=(taken,)))
    executor.put_masks(0, {} if mask is None else {0: mask})
    [sampled] = wait()
    assert sampled is not None
    return sampled


@pytest.mark.parametrize(
    ("mask", "drawn"), [(None, b"a"), (only(b"abc"), b"a"), (only(b"xyz"), b"x"), (only(bytes([0, 255])), b"\0")]
)
def test_what_a_mask_forbids_becomes_the_first_token_that_it_allows(mask: bytes | None, drawn: bytes) -> None:
    assert bytes(draw(mask).token_ids) == drawn


def test_blocked_tokens_are_not_drawn_where_a_mask_allows_them() -> None:
    blocking: dict[str, Any] = {"blocked_token_ids": (*b"ax",), "blocked_below_position": 3}
    assert bytes(draw(only(b"axy"), **blocking).token_ids) == b"y"
    lost = draw(only(b"ax"), **blocking)
    assert lost.token_ids == ()
    assert lost.failure is not None


def test_each_guess_has_a_mask_of_its_own() -> None:
    assert bytes(draw(only(b"a") + only(b"b") + only(b"q"), b"ab").token_ids) == b"abq"
    assert bytes(draw(only(b"a") + only(b"x") + only(b""), b"ab").token_ids) == b"ax"
    assert draw(only(b"a") + only(b""), b"a").failure is not None
