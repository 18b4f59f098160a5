"""Log-probabilities on the wire: the legacy shape of completions, and vLLM's of prompts."""

import codecs
from collections.abc import Iterable, Sequence

import msgspec

from limelight.generation import AlternativeToken, TokenLogprob

LOWEST_LOGPROB = -9999.0
"""JSON has no minus infinity; a token that could not be drawn gets this, as in vLLM."""


def finite(logprob: float) -> float:
    """`logprob`, at least -9999."""
    return max(logprob, LOWEST_LOGPROB)


def token_name(token: TokenLogprob | AlternativeToken, *, as_id: bool) -> str:
    """The token's text, or `token_id:17` for clients that asked for ids."""
    return f"token_id:{token.token_id}" if as_id else token.token


def legacy_name(token: TokenLogprob | AlternativeToken, *, as_id: bool) -> str:
    r"""The same in the legacy shape, where a part of a character is `bytes:\xe2\x82`."""
    if as_id:
        return token_name(token, as_id=True)
    try:
        token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.token


def alternatives(entry: TokenLogprob) -> Iterable[AlternativeToken]:
    """The best tokens, then those that were asked for and are not among them."""
    best = {token.token_id for token in entry.top}
    asked = {token.token_id: token for token in entry.asked if token.token_id not in best}
    return (*entry.top, *asked.values())


class LegacyLogprobs(msgspec.Struct, frozen=True):
    """Four parallel lists, one entry per token. `text_offset` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class LegacyWriter:
    """Writes the tokens of one choice in the legacy shape, as they come.

    A token begins where its text does, and one inside a character where the character does.

    Args:
        echo: what the choice's text begins with. Its tokens come first if `scored`, the very first without numbers,
            since nothing stands before it. One whose text is not there (a BOS that the tokenizer added) takes no room.
        num_echoed: how many tokens it has.
        as_ids: name tokens by their ids.
    """

    __slots__ = ("_as_ids", "_decoder", "_echo", "_num_left", "_offset", "_unscored")

    def __init__(self, echo: str = "", num_echoed: int = 0, *, as_ids: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._echo = echo
        self._num_left = num_echoed
        self._unscored = num_echoed > 0
        self._offset = 0 if num_echoed else len(echo)
        self._as_ids = as_ids

    def write(self, entries: Sequence[TokenLogprob] | None) -> LegacyLogprobs | None:
        """The next tokens."""
        if entries is None:
            return None
        written = LegacyLogprobs([], [], [], [])
        for entry in entries:
            name = legacy_name(entry, as_id=self._as_ids)
            top = {legacy_name(other, as_id=self._as_ids): finite(other.logprob) for other in alternatives(entry)}
            written.tokens.append(name)
            written.token_logprobs.append(None if self._unscored else finite(entry.logprob))
            written.top_logprobs.append(None if self._unscored else top | {name: finite(entry.logprob)})
            written.text_offset.append(self._offset)
            self._unscored = False
            self._advance(self._decoder.decode(entry.bytes))
        return written

    def _advance(self, text: str) -> None:
        if not self._num_left:
            self._offset += len(text)
            return
        self._num_left -= 1
        for own in (text, text.lstrip(" ")):  # some tokenizers put a space before the first word
            if own and self._echo.startswith(own, self._offset):
                self._offset += len(own)
                break
        if not self._num_left:
            self._offset = len(self._echo)
            self._decoder.reset()


class PromptToken(msgspec.Struct, frozen=True):
    """What vLLM tells of a token of the prompt; `rank` is its place among all tokens, 1 for the best."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""One entry per token of the prompt, by token id: the token itself, then the best ones; None for the first token."""


def prompt_logprobs(entries: Sequence[TokenLogprob | None]) -> PromptLogprobs:
    """The wire form."""
    return [None if entry is None else _prompt_token(entry) for entry in entries]


def _prompt_token(entry: TokenLogprob) -> dict[str, PromptToken]:
    assert entry.rank is not None, "tokens of prompts have one"
    tokens = {str(entry.token_id): PromptToken(finite(entry.logprob), entry.rank, entry.token)}
    for rank, other in enumerate(entry.top, start=1):
        tokens.setdefault(str(other.token_id), PromptToken(finite(other.logprob), rank, other.token))
    return tokens
