"""The whole table: every endpoint that reads a JSON body, with its rows."""

from collections.abc import Mapping

import msgspec

from limelight.http.protocol.fields.adapters import LOAD_FIELDS, UNLOAD_FIELDS
from limelight.http.protocol.fields.anthropic import COUNT_TOKENS_FIELDS, MESSAGES_FIELDS
from limelight.http.protocol.fields.chat import CHAT_FIELDS
from limelight.http.protocol.fields.completions import COMPLETION_FIELDS
from limelight.http.protocol.fields.embeddings import EMBEDDING_FIELDS
from limelight.http.protocol.fields.field import Field
from limelight.http.protocol.fields.responses import RESPONSES_FIELDS
from limelight.http.protocol.fields.tokens import DETOKENIZE_FIELDS, TOKENIZE_FIELDS


class Endpoint(msgspec.Struct, frozen=True):
    """The rows of `POST path`, by field name."""

    path: str
    fields: Mapping[str, Field]


ENDPOINTS = (
    Endpoint("/v1/chat/completions", CHAT_FIELDS),
    Endpoint("/v1/completions", COMPLETION_FIELDS),
    Endpoint("/v1/embeddings", EMBEDDING_FIELDS),
    Endpoint("/v1/messages", MESSAGES_FIELDS),
    Endpoint("/v1/messages/count_tokens", COUNT_TOKENS_FIELDS),
    Endpoint("/v1/responses", RESPONSES_FIELDS),
    Endpoint("/tokenize", TOKENIZE_FIELDS),
    Endpoint("/detokenize", DETOKENIZE_FIELDS),
    Endpoint("/v1/load_lora_adapter", LOAD_FIELDS),
    Endpoint("/v1/unload_lora_adapter", UNLOAD_FIELDS),
)
