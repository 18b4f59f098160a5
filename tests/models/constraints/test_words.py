"""A bad word never occurs in the text, however it is cut into tokens, and only what completes one is forbidden."""

import random

from hypothesis import given
from hypothesis import strategies as st

from limelight.models.constraints.words import WatchedWord, WordFilter, watched_form
from tests.models.constraints.wordy_vocabulary import END, SPECIAL, TABLE, TOKENS, VOCAB_SIZE, allowed, begin, walk

words = st.lists(st.text("abc the<>\n", min_size=1, max_size=6), min_size=1, max_size=4)
tokens = st.lists(st.integers(0, len(TOKENS) - 1), max_size=30)


@given(words, st.integers(0, 10_000), st.sampled_from([True, False]))
def test_a_word_never_occurs(bad_words, seed, skips):
    letters = [id_ for id_, token in enumerate(TOKENS) if set(token) <= set(b"abc the<>\n")]
    constraint = begin(bad_words=bad_words, skip_special_tokens=skips)
    drawn, _ = walk(constraint, random.Random(seed), max_tokens=60, prefers={*letters, *SPECIAL} - {END})
    text = "".join("" if skips and id_ in SPECIAL else TOKENS[id_].decode() for id_ in drawn)
    for word in bad_words:
        assert watched_form(word) not in text


@given(words, tokens)
def test_only_what_completes_a_word_is_forbidden(bad_words, so_far):
    constraint = begin(bad_words=bad_words, skip_special_tokens=False)
    constraint.advance(so_far)
    before = b"".join(TOKENS[id_] for id_ in so_far)
    watched = [watched_form(word).encode() for word in bad_words]
    may_follow = set(allowed(constraint))
    for token_id, token in enumerate(TOKENS):
        completes = any(word in (before + token)[max(0, len(before) - len(word) + 1) :] for word in watched)
        assert (token_id in may_follow) == (not completes or token_id == END)


def test_a_word_is_found_with_and_without_a_space_before_it():
    for word in ("the", " the"):
        may_follow = allowed(begin(bad_words=[word]))
        assert TOKENS.index(b"the") not in may_follow
        assert TOKENS.index(b" the") not in may_follow
        assert TOKENS.index(b" a") in may_follow


def test_white_space_may_be_a_word_itself():
    may_follow = allowed(begin(bad_words=[" "]))
    assert ord(" ") not in may_follow
    assert ord("a") in may_follow


def test_a_special_token_may_be_named():
    may_follow = allowed(begin(bad_words=["<call>"]))
    assert TOKENS.index(b"<call>") not in may_follow


@given(st.binary(min_size=1, max_size=6), st.lists(st.binary(min_size=1, max_size=3), max_size=12))
def test_progress_is_the_longest_end_that_begins_the_word(word, pieces):
    watched, matched, text = WatchedWord(word, TABLE), 0, b""
    for piece in pieces:
        matched, text = watched.progress(matched, piece), text + piece
        longest = max(length for length in range(len(word) + 1) if text.endswith(word[:length]))
        assert matched == longest


def test_a_filter_takes_nothing_of_other_masks():
    import numpy as np

    mask = np.ones(VOCAB_SIZE, np.bool_)
    WordFilter((), TABLE, frozenset()).restrict(mask)
    assert mask.all()
