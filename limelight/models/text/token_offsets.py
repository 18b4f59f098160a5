"""Where each token of a prompt stands in the prompt's text."""

from collections.abc import Sequence

from limelight.models.loaded_model import Vocabulary

Offsets = tuple[tuple[int, int], ...]


def token_offsets(vocabulary: Vocabulary, token_ids: Sequence[int], text: str) -> Offsets | None:
    """Start and end of each token in `text`, in characters; None if the tokenizer has changed the text.

    A token that was added to the text (a BOS, a first space) is empty where it stands. Tokens that share a character
    both cover it.
    """
    data = text.encode("utf-8", "surrogatepass")
    spans: list[tuple[int, int]] = []
    place = 0
    for token_id in token_ids:
        raw = vocabulary.token_bytes(token_id)
        if not data.startswith(raw, place):
            if vocabulary.is_special(token_id):
                raw = b""
            elif raw.startswith(b" ") and data.startswith(raw[1:], place):
                raw = raw[1:]
            else:
                return None
        spans.append((place, place + len(raw)))
        place += len(raw)
    character_of = _characters(data)
    return tuple(
        (character_of[start], character_of[end - 1] + 1 if end > start else character_of[start]) for start, end in spans
    )


def _characters(data: bytes) -> list[int]:
    """Number of the character that each byte belongs to, and the number of characters last."""
    numbers: list[int] = []
    number = -1
    for byte in data:
        number += byte & 0xC0 != 0x80
        numbers.append(number)
    return [*numbers, number + 1]
