"""Tokens are found by their bytes as a walk over all of them finds them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.models.constraints.token_table import packed, unpacked
from tests.models.constraints.wordy_vocabulary import TABLE, TOKENS, VOCAB_SIZE

texts = st.one_of(
    st.binary(min_size=1, max_size=3),
    st.text("abct he<>/\n", min_size=1, max_size=5).map(str.encode),
    st.sampled_from([b"\xff", b"\xff\xff", b"a\xff", b"<|", b"\xf0\x9f"]),
)


@given(texts)
def test_tokens_with_a_beginning(text):
    expected = {id_ for id_, token in enumerate(TOKENS) if token.startswith(text)}
    assert set(TABLE.beginning_with(text).tolist()) == expected


@given(texts)
def test_tokens_that_hold_a_text(text):
    assert TABLE.containing(text).tolist() == [id_ for id_, token in enumerate(TOKENS) if text in token]


@given(texts)
def test_tokens_that_a_text_begins_with(text):
    assert set(TABLE.within(text).tolist()) == {id_ for id_, token in enumerate(TOKENS) if text.startswith(token)}


@given(st.binary(max_size=20))
def test_a_text_is_spelt_by_tokens(text):
    assert b"".join(TOKENS[id_] for id_ in TABLE.spelling(text)) == text


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_masks_cross_threads_as_whole_words(bits):
    mask = np.array(bits, np.bool_)
    raw = packed(mask)
    assert len(raw) % 4 == 0
    assert [raw[place // 8] >> place % 8 & 1 for place in range(len(bits))] == bits
    assert not any(raw[place // 8] >> place % 8 & 1 for place in range(len(bits), len(raw) * 8))
    assert (unpacked(raw, len(bits)) == mask).all()


def test_a_mask_allows_the_given_tokens_only():
    assert TABLE.mask((3, VOCAB_SIZE - 1)).nonzero()[0].tolist() == [3, VOCAB_SIZE - 1]


def test_what_no_token_begins_is_told():
    class Poor:
        def token_bytes(self, token_id):
            return b"ab"

        def is_special(self, token_id):
            return False

    from limelight.models.constraints.token_table import TokenTable

    with pytest.raises(ValueError, match="no token"):
        TokenTable(Poor(), 1).spelling(b"b")


def test_a_text_longer_than_all_tokens_is_nowhere():
    assert not len(TABLE.containing(b"x" * 100_000))
    assert not len(TABLE.beginning_with(b"x" * 100_000))
