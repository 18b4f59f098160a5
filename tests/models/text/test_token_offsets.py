"""Offsets of a prompt's tokens: they cover the text, in order, and say nothing where the text was changed."""

from hypothesis import given
from hypothesis import strategies as st

from limelight.models.text.token_offsets import token_offsets
from limelight.testing import BEGIN, ByteVocabulary


@given(st.text(max_size=50), st.booleans())
def test_every_token_covers_the_characters_that_its_bytes_are_of(text, special):
    vocabulary = ByteVocabulary()
    token_ids = vocabulary.encode(text, add_special_tokens=special)
    offsets = token_offsets(vocabulary, token_ids, text)
    assert len(offsets) == len(token_ids)
    if special:
        assert offsets[0] == (0, 0)
    bytes_of = [(number, byte) for number, letter in enumerate(text) for byte in letter.encode()]
    for (start, end), (number, _) in zip(offsets[special:], bytes_of, strict=True):
        assert (start, end) == (number, number + 1)


def test_a_space_that_the_tokenizer_put_before_the_text_is_no_part_of_it():
    class Spaced(ByteVocabulary):
        def token_bytes(self, token_id):
            return b" hi" if token_id == 0 else super().token_bytes(token_id)

    assert token_offsets(Spaced(), [BEGIN, 0, ord("!")], "hi!") == ((0, 0), (0, 2), (2, 3))


def test_a_text_that_the_tokenizer_changed_has_no_offsets():
    assert token_offsets(ByteVocabulary(), list(b"abc"), "ABC") is None
