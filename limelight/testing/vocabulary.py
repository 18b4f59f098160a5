"""The vocabulary of scripted models: bytes, so that token ids are easy to read.

Id 0 to 255 is that byte, then come `<|end|>` and `<|begin|>`.
"""

from collections.abc import Sequence

from limelight.errors import InvalidRequest

END = 256
BEGIN = 257
VOCAB_SIZE = 258
_SPECIAL = {END: b"<|end|>", BEGIN: b"<|begin|>"}


class ByteVocabulary:
    """One token per byte, and two special ones."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """UTF-8 bytes of `text`, after a `<|begin|>` if asked for; `<|end|>` in the text is one token."""
        try:
            pieces = text.encode().split(_SPECIAL[END])
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the prompt holds a lone surrogate at character {error.start}", param="prompt"
            ) from None
        token_ids = [BEGIN] if add_special_tokens else []
        for number, piece in enumerate(pieces):
            token_ids += [END] * bool(number) + list(piece)
        return token_ids

    def mark_controls(self, text: str, mark: str) -> str:
        """See `limelight.models.text.control_texts.MarksControls`."""
        written = _SPECIAL[END].decode()
        return text.replace(written, f"{written[0]}{mark}{written[1:]}")

    def encode_marked(self, mark: str, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `limelight.models.text.control_texts.MarksControls`."""
        pieces = text.split(mark)
        token_ids = self.encode(pieces[0], add_special_tokens=add_special_tokens)
        for piece in pieces[1:]:
            token_ids += self.encode(piece, add_special_tokens=False)
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Joined bytes as UTF-8."""
        kept = (token_id for token_id in token_ids if not (skip_special_tokens and self.is_special(token_id)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The byte itself."""
        return bytes((token_id,)) if token_id < END else _SPECIAL.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        """`<|end|>` and `<|begin|>` are."""
        return token_id in _SPECIAL
