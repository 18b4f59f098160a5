"""The text of a choice does not depend on how its bytes are split into tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from limelight.models.text.detokenizer import Detokenizer

SPECIAL = b"<|end|>"
"""No part of a split is it: hypothesis draws literals that it finds in the source, this one too."""


class ListedVocabulary:
    """Token i has the i-th of the given byte strings; `SPECIAL` is a control token."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id] if token_id < len(self.tokens) else b""

    def is_special(self, token_id: int) -> bool:
        return self.token_bytes(token_id) == SPECIAL


def pieces(tokens: Sequence[bytes], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(ListedVocabulary(tokens), skip_special_tokens)
    return [detokenizer.feed(index) for index in range(len(tokens))] + [detokenizer.flush()]


def without_unfinished_character(raw: bytes) -> bytes:
    """Independent statement of the rule: drop a tail of up to three bytes that some continuation makes a character."""
    for length in (3, 2, 1):
        tail = raw[-length:]
        if len(raw) >= length and tail[0] >= 0xC0 and can_become_a_character(tail):
            return raw[:-length]
    return raw


def can_become_a_character(tail: bytes) -> bool:
    continuations = [bytes([a, b][:n]) for n in (1, 2) for a in range(0x80, 0xC0) for b in (0x80, 0xBF)]
    candidates = [tail + more for more in continuations] + [tail + bytes([a, 0x80, 0x80]) for a in range(0x80, 0xC0)]
    return any(is_one_character(candidate) for candidate in candidates)


def is_one_character(raw: bytes) -> bool:
    try:
        return len(raw.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


BYTES_NEAR_UTF8 = st.lists(
    st.sampled_from(
        [
            *"aé€ď你😀👩\u200d".encode(),
            0x00,
            0x7F,
            0x80,
            0xA7,
            0xBF,
            0xC0,
            0xC2,
            0xE0,
            0xED,
            0xEF,
            0xF0,
            0xF4,
            0xF5,
            0xFF,
        ]
    ),
    max_size=24,
).map(bytes)
TEXT_BYTES = st.text(st.sampled_from("ab é€ď你😀👩\u200d🚀\n"), max_size=12).map(str.encode)
RAW = st.one_of(BYTES_NEAR_UTF8, TEXT_BYTES, st.binary(max_size=24))


@st.composite
def split(draw: st.DrawFn) -> list[bytes]:
    raw = draw(RAW)
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=len(raw))))
    tokens = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assume(SPECIAL not in tokens)
    return tokens


@given(split())
@example([b"\xed", b"\xa0", b"\x80"])
@example([b"\xed\xa9"])
@example([b"\xed\xbf", b"\xa0"])
@example([b"\xf4", b"\x90", b"\x80", b"\x80"])
@example([b"\xe0", b"\x80", b"a"])
@example([b"\xa7", b" the"])
@example([b"\xf0\x9f", b"\x98", b"a", b"\x80"])
def test_any_split_gives_the_whole_decode(tokens: list[bytes]) -> None:
    raw = b"".join(tokens)

    assert "".join(pieces(tokens)) == without_unfinished_character(raw).decode("utf-8", errors="replace")


@given(split())
def test_the_text_of_fewer_tokens_is_a_prefix_of_the_text_of_more(tokens: list[bytes]) -> None:
    whole = "".join(pieces(tokens))

    for length in range(len(tokens)):
        assert whole.startswith("".join(pieces(tokens[:length])))


@given(st.text(), st.data())
def test_valid_text_never_shows_a_replacement_character_of_its_own(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", errors="ignore")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    tokens = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    given_out = pieces(tokens)

    assert "".join(given_out) == raw.decode()
    assert sum(piece.count("\ufffd") for piece in given_out) == raw.decode().count("\ufffd")


def test_a_character_is_released_by_the_token_that_completes_it() -> None:
    assert pieces([b"a\xf0", b"\x9f\x98", b"\x80b", b"\xc3"]) == ["a", "", "😀b", "", ""]


def test_pending_bytes_are_counted_until_the_character_is_complete() -> None:
    detokenizer = Detokenizer(ListedVocabulary([b"\xf0\x9f", b"\x98", b"\x80"]), skip_special_tokens=True)

    counts = [(detokenizer.feed(token_id), detokenizer.num_pending_bytes)[1] for token_id in range(3)]

    assert counts == [2, 3, 0]


def test_flush_leaves_nothing_pending() -> None:
    detokenizer = Detokenizer(ListedVocabulary([b"\xf0\x9f"]), skip_special_tokens=True)
    detokenizer.feed(0)

    assert detokenizer.flush() == ""
    assert detokenizer.num_pending_bytes == 0


@pytest.mark.parametrize(
    ("skip_special_tokens", "expected"), [(True, ["a", "", "b", ""]), (False, ["a", "<|end|>", "b", ""])]
)
def test_special_tokens_are_left_out_when_asked(skip_special_tokens: bool, expected: list[str]) -> None:
    assert pieces([b"a", SPECIAL, b"b"], skip_special_tokens=skip_special_tokens) == expected


def test_a_skipped_special_token_does_not_interrupt_a_character() -> None:
    assert "".join(pieces([b"\xc3", SPECIAL, b"\xa9"])) == "é"


def test_ids_without_text_give_no_text() -> None:
    detokenizer = Detokenizer(ListedVocabulary([b"a"]), skip_special_tokens=True)

    assert detokenizer.feed(50_000) == ""
    assert detokenizer.feed(0) == "a"
