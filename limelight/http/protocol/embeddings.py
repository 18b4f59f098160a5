"""`/v1/embeddings` on the wire: what comes in, what goes out."""

import base64
import struct
from collections.abc import Sequence
from typing import Literal

import msgspec

from limelight.errors import InvalidRequest
from limelight.generation import TextPrompt, TokensPrompt
from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.embeddings import EMBEDDING_FIELDS
from limelight.http.protocol.sampling import Integer


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request."""

    model: str
    input: str | list[str | Integer | list[Integer]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Integer | None = None
    add_special_tokens: bool | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = None


EMBEDDING_DECODER = Decoder(EmbeddingRequest, EMBEDDING_FIELDS)


def embedding_prompts(request: EmbeddingRequest) -> list[TextPrompt | TokensPrompt]:
    """What is embedded, in order.

    Raises:
        InvalidRequest: nothing, something empty, or a list that mixes kinds.
    """
    given = request.input
    entries = [given] if isinstance(given, str) else given
    if len(set(map(type, entries))) > 1:
        raise InvalidRequest("input mixes strings, token ids and lists; use one kind", param="input")
    token_ids = [entry for entry in entries if isinstance(entry, int)]
    if token_ids:
        return [TokensPrompt(tuple(token_ids))]
    if not entries or not all(entries):
        raise InvalidRequest("input is empty, or holds something empty; every input needs a token", param="input")
    special = request.add_special_tokens is not False
    return [
        TextPrompt(entry, special) if isinstance(entry, str) else TokensPrompt(tuple(entry))
        for entry in entries
        if not isinstance(entry, int)
    ]


class EmbeddingObject(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or base64 of little-endian float32."""

    object: str = "embedding"
    index: int
    embedding: Sequence[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """`usage`: no tokens but the prompts'."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The whole response."""

    object: str = "list"
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


def encoded(vector: Sequence[float], request: EmbeddingRequest) -> Sequence[float] | str:
    """The vector in the form that the request asks for."""
    if request.encoding_format != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
