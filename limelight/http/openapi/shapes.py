"""What goes into every route and what comes out: the types that decode its requests and encode its answers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from limelight.http.capabilities import Capabilities
from limelight.http.errors import ErrorBody
from limelight.http.health import Health, Load, Version
from limelight.http.live.objects import RequestDetail, RequestList
from limelight.http.model_list import ModelList, ModelObject
from limelight.http.protocol.adapters import LoadAdapter, UnloadAdapter
from limelight.http.protocol.anthropic.answer import (
    AnthropicError,
    BlockDelta,
    BlockStart,
    BlockStop,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    TokenCount,
)
from limelight.http.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from limelight.http.protocol.chat import ChatRequest
from limelight.http.protocol.chat_answer import ChatChunk, ChatCompletion
from limelight.http.protocol.completions import CompletionRequest, TextCompletion
from limelight.http.protocol.embeddings import EmbeddingList, EmbeddingRequest
from limelight.http.protocol.responses.objects import DeletedResponse, InputItemList, ResponseObject
from limelight.http.protocol.responses.request import ResponsesRequest
from limelight.http.protocol.tokens import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest

JSON, TEXT, HTML, EVENTS = "application/json", "text/plain", "text/html", "text/event-stream"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One operation.

    Attributes:
        body: what the request's JSON is decoded into, None: there is none.
        answer: what is encoded as the answer's JSON; None: it has no JSON, or none at all with status 204.
        event: what each event of a stream holds, unless it is an error; None: the route does not stream.
        public: it answers without an API key.
        parameters: of the query string -> their types.
        error: what is encoded as the JSON of an error.
        unready: what is encoded instead with status 503, None: nothing else.
    """

    summary: str
    body: Any = None
    answer: Any = None
    event: Any = None
    media_type: str = JSON
    status: int = 200
    public: bool = False
    parameters: Mapping[str, Any] = {}
    error: Any = ErrorBody
    unready: Any = None


_HEALTH: dict[str, Any] = {"answer": Health, "unready": Health, "public": True}
_DOCUMENT = Shape(summary="The OpenAPI document", answer=dict[str, Any], public=True)
_MESSAGES_EVENT = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | AnthropicError
)

SHAPES: Mapping[tuple[str, str], Shape] = {
    ("POST", "/v1/chat/completions"): Shape(
        summary="An answer to a conversation", body=ChatRequest, answer=ChatCompletion, event=ChatChunk
    ),
    ("POST", "/v1/completions"): Shape(
        summary="The continuation of one or several prompts",
        body=CompletionRequest,
        answer=TextCompletion,
        event=TextCompletion,
    ),
    ("POST", "/v1/embeddings"): Shape(summary="A vector for each text", body=EmbeddingRequest, answer=EmbeddingList),
    ("POST", "/v1/responses"): Shape(
        summary="An answer to items, stored unless the request says otherwise",
        body=ResponsesRequest,
        answer=ResponseObject,
        event=dict[str, Any],
    ),
    ("GET", "/v1/responses/{response_id:str}"): Shape(
        summary="A stored response, or its events",
        answer=ResponseObject,
        event=dict[str, Any],
        parameters={"stream": bool, "starting_after": int},
    ),
    ("POST", "/v1/responses/{response_id:str}/cancel"): Shape(
        summary="End a response in the background", answer=ResponseObject
    ),
    ("DELETE", "/v1/responses/{response_id:str}"): Shape(summary="Forget a stored response", answer=DeletedResponse),
    ("GET", "/v1/responses/{response_id:str}/input_items"): Shape(
        summary="What a stored response was asked",
        answer=InputItemList,
        parameters={"limit": int, "order": str, "after": str},
    ),
    ("POST", "/v1/messages"): Shape(
        summary="An answer to a conversation, in the form of Anthropic's API",
        body=MessagesRequest,
        answer=Message,
        event=_MESSAGES_EVENT,
        error=AnthropicError,
    ),
    ("POST", "/v1/messages/count_tokens"): Shape(
        summary="How many tokens a conversation has", body=CountTokensRequest, answer=TokenCount, error=AnthropicError
    ),
    ("GET", "/v1/streams/{stream_id:str}"): Shape(
        summary="A recorded stream, from the beginning or after an event",
        event=dict[str, Any],
        media_type=EVENTS,
        parameters={"after": str},
    ),
    ("DELETE", "/v1/streams/{stream_id:str}"): Shape(
        summary="Abort a recorded stream that runs, or forget one that has ended", status=204
    ),
    ("GET", "/v1/requests"): Shape(
        summary="The requests that are running, and the last ones that have ended: numbers, never content",
        answer=RequestList,
        parameters={"recent": int},
    ),
    ("GET", "/v1/requests/events"): Shape(
        summary="The last minutes, then a snapshot a second and each request that ends",
        event=dict[str, Any],
        media_type=EVENTS,
    ),
    ("GET", "/v1/requests/{request_id:str}"): Shape(summary="Where the time of one request went", answer=RequestDetail),
    ("GET", "/v1/requests/{request_id:str}/trace"): Shape(
        summary="The spans of one request as OTLP in JSON, to download", answer=dict[str, Any]
    ),
    ("DELETE", "/v1/requests/{request_id:str}"): Shape(
        summary="Abort a request of one's own, or with an admin key any", status=204
    ),
    ("GET", "/v1/records/{record_id:str}"): Shape(
        summary="The replay bundle of a recorded request, prompt and answer included (admin keys)",
        answer=dict[str, Any],
    ),
    ("POST", "/tokenize"): Shape(
        summary="Token ids of a text or of a conversation", body=TokenizeRequest, answer=Tokenized
    ),
    ("POST", "/detokenize"): Shape(summary="The text of token ids", body=DetokenizeRequest, answer=Detokenized),
    ("GET", "/v1/models"): Shape(summary="The model and its adapters", answer=ModelList),
    ("GET", "/v1/models/{model_id:path}"): Shape(summary="One model", answer=ModelObject),
    ("GET", "/v1/capabilities"): Shape(
        summary="What every request field does, and what the model can do", answer=Capabilities
    ),
    ("POST", "/v1/load_lora_adapter"): Shape(
        summary="Load a LoRA adapter (admin keys)", body=LoadAdapter, media_type=TEXT
    ),
    ("POST", "/v1/unload_lora_adapter"): Shape(
        summary="Unload a LoRA adapter (admin keys)", body=UnloadAdapter, media_type=TEXT
    ),
    ("GET", "/load"): Shape(summary="How much the server has to do", answer=Load),
    ("GET", "/metrics"): Shape(summary="Metrics in the text format of Prometheus, or in OpenMetrics", media_type=TEXT),
    ("GET", "/version"): Shape(summary="Version of the server", answer=Version),
    ("GET", "/livez"): Shape(summary="Whether the process answers", **_HEALTH),
    ("GET", "/readyz"): Shape(summary="Whether new requests are taken", **_HEALTH),
    ("GET", "/health"): Shape(summary="Whether the engine is healthy, draining included", **_HEALTH),
    ("GET", "/ping"): Shape(summary="The same as /health", **_HEALTH),
    ("POST", "/ping"): Shape(summary="The same as /health", **_HEALTH),
    ("GET", "/openapi.json"): _DOCUMENT,
    ("GET", "/schema/openapi.json"): _DOCUMENT,
    ("GET", "/docs"): Shape(summary="This API for people", media_type=HTML, public=True),
    ("GET", "/"): Shape(summary="The chat page", media_type=HTML, public=True),
    ("GET", "/ui/requests"): Shape(summary="The page of requests: where the time went", media_type=HTML, public=True),
    ("GET", "/ui/{name:path}"): Shape(summary="A file of these pages", media_type="*/*", public=True),
}
"""By method and path, in the order in which people read them."""
