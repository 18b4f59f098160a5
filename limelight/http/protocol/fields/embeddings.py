"""Rows of `/v1/embeddings`."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, no_effect, works
from limelight.http.protocol.fields.wording import IDENTITY

EMBEDDING_FIELDS: Mapping[str, Field] = {
    "model": works(),
    "input": works("a string, a list of strings, token ids, or a list of token-id lists; none of them empty"),
    "encoding_format": works("float, or base64: numbers of four bytes, little-endian"),
    "dimensions": works("keeps the first so many numbers, scaled to length 1 again"),
    "add_special_tokens": works("whether the tokenizer adds its own special tokens (an end, say) to a text"),
    "priority": works("lower is served earlier"),
    "cache_salt": works("only requests with the same salt share cached prefixes"),
    "request_id": works("echoed in the x-request-id header"),
    "user": no_effect(IDENTITY),
}
