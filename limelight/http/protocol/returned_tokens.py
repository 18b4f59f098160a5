"""What a request may get back beside the text: the prompt as the model got it, and token ids.

In a stream all of it is cut so that each part fits a frame; joined, the parts are the whole.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

import msgspec

from limelight.http.protocol.sampling import GenerationFields

MAX_PIECE_TOKENS = 2048
"""Of ids, and of offsets: two numbers of up to eight digits each, in JSON 40 KiB together with the text."""
MAX_PIECE_CHARACTERS = 2048

TokenIds = list[int] | msgspec.UnsetType


class ReturnedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt, as far as the request asks for it; the offsets are characters of `prompt_text`, start and end."""

    prompt_token_ids: TokenIds = msgspec.UNSET
    prompt_text: str | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_offsets: list[tuple[int, int]] | msgspec.UnsetType | None = msgspec.UNSET


class EncodedPrompt(Protocol):
    """A prompt once it has been encoded."""

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """As the model got it."""
        ...

    @property
    def prompt_text(self) -> str | None:
        """Rendered, and whole even if tokens were cut from it; None for a prompt of token ids."""
        ...

    @property
    def prompt_token_offsets(self) -> tuple[tuple[int, int], ...] | None:
        """Start and end of each token in the text, if known."""
        ...


Prompted = TypeVar("Prompted", bound=ReturnedPrompt)
Chosen = TypeVar("Chosen", bound=msgspec.Struct)


class ReturnedTokens:
    """Adds to answers what `fields` asks for; whatever it does not ask for stays out of the JSON.

    `named_by_id`: log-probabilities name tokens by their ids.
    """

    def __init__(self, fields: GenerationFields) -> None:
        self.named_by_id = bool(fields.return_tokens_as_token_ids)
        self._ids = bool(fields.return_token_ids)
        self._text = bool(fields.return_prompt_text)
        self._offsets = bool(fields.return_token_offsets)

    def with_prompt(self, answer: Prompted, prompt: EncodedPrompt) -> Prompted:
        """`answer` with the whole prompt."""
        whole: Prompted = _replaced(answer, self._wanted(prompt))
        return whole

    def prompt_pieces(self, first: Prompted, further: Prompted, prompt: EncodedPrompt) -> Iterator[Prompted]:
        """`first` with the first part of the prompt, and `further` with each other one."""
        wanted = self._wanted(prompt)
        columns = [_cut(value) for value in wanted.values()] or [[msgspec.UNSET]]
        for number, parts in enumerate(zip_longest(*columns, fillvalue=msgspec.UNSET)):
            yield _replaced(further if number else first, dict(zip(wanted, parts, strict=False)))

    def token_ids(self, token_ids: Sequence[int]) -> TokenIds:
        """`token_ids` of a whole choice."""
        return list(token_ids) if self._ids else msgspec.UNSET

    def spread(self, chunks: list[Chosen], token_ids: Sequence[int], empty: Chosen) -> Iterator[Chosen]:
        """`chunks` of a choice with the ids of their tokens, after as many `empty` ones as the ids need beyond them."""
        if not self._ids:
            yield from chunks
            return
        parts = _cut(token_ids) if token_ids else []
        padding = [empty] * (len(parts) - len(chunks))
        for chunk, part in zip_longest([*padding, *chunks], parts, fillvalue=()):
            yield _replaced(chunk, {"token_ids": list(part)})

    def _wanted(self, prompt: EncodedPrompt) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        if self._ids:
            wanted["prompt_token_ids"] = list(prompt.prompt_token_ids)
        if self._text:
            wanted["prompt_text"] = prompt.prompt_text
        if self._offsets:
            offsets = prompt.prompt_token_offsets
            wanted["prompt_token_offsets"] = None if offsets is None else list(offsets)
        return wanted


def _replaced(struct: Any, values: dict[str, Any]) -> Any:
    return msgspec.structs.replace(struct, **values) if values else struct


def _cut(value: Any) -> list[Any]:
    """`value` in parts that fit a frame, at least one."""
    if not value:
        return [value]
    size = MAX_PIECE_CHARACTERS if isinstance(value, str) else MAX_PIECE_TOKENS
    return [value[start : start + size] for start in range(0, len(value), size)]
