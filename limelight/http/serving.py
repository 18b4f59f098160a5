"""What the routes of one application share: the engine, the settings, and how a request body is taken in."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from litestar import Request
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp

from limelight.engine import Engine
from limelight.errors import InvalidRequest, ModelNotFound, Overloaded, UnsupportedField
from limelight.generation import GenerationRequest, Prompt, ReasoningFormat, SamplingParams, Share, Truncation
from limelight.http.deadlines import deadlines
from limelight.http.exchange import exchange_of
from limelight.http.keys.principal import Principal
from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.sampling import GenerationFields, check_shared
from limelight.http.recordings import Recordings
from limelight.http.records import record_id
from limelight.http.request_id import adopt_request_id, request_id
from limelight.http.resumable import ResumableAnswer
from limelight.http.settings import HttpSettings
from limelight.http.sse import FrameWriter, StreamedAnswer
from limelight.http.stream_options import stream_options
from limelight.http.unread_body import discard_body
from limelight.quoting import quoted, shorten

logger = logging.getLogger(__name__)

Fields = TypeVar("Fields", bound=GenerationFields)
Body = TypeVar("Body", bound=msgspec.Struct)
Result = TypeVar("Result")

MAX_BYTES_ON_LOOP = 64 * 1024
"""A longer body is decoded on a thread, so that the event loop waits for a part of the work only."""
NUM_DECODING_THREADS = 2
IGNORED_FIELDS_HEADER = "x-limelight-ignored-fields"
MAX_NAMED_FIELDS = 16
MAX_LOGGED_FIELDS = 1000
FORM_TYPE = "application/x-www-form-urlencoded"


class Serving:
    """One application's engine, settings and recorded streams.

    `created`: Unix seconds, the date of the model in the API.
    """

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.recordings = Recordings(engine, settings)
        self.created = int(time.time())
        self._logged_fields: set[str] = set()
        self._decoding = anyio.CapacityLimiter(NUM_DECODING_THREADS)

    async def read(self, request: Request[Any, Any, Any], decoder: Decoder[Fields]) -> tuple[Fields, dict[str, str]]:
        """The decoded body, and the headers that the response shall carry.

        Raises:
            InvalidRequest: the body is not a valid request.
            ModelNotFound: it names a model that is not served.
            HTTPException: the body is too large (413) or of another media type (415).
        """
        fields, ignored = await self.decode(request, decoder)
        check_shared(fields)
        if fields.request_id is not None:
            adopt_request_id(request.scope, fields.request_id)
        self.check_model(fields.model, request)
        return fields, self.report_ignored(ignored)

    def check_model(self, model: str, request: Request[Any, Any, Any]) -> None:
        """Raises ModelNotFound if neither the model nor an adapter has this name, or the key may not use it."""
        principal: Principal = request.scope["user"]
        principal.check_model(model)
        if model != self.engine.model_name and model not in self._adapter_names():
            all_names = (self.engine.model_name, *self._adapter_names())
            names = ", ".join(repr(name) for name in all_names if principal.may_use(name))
            raise ModelNotFound(
                f"The model {quoted(model)} is not served here; this server has "
                f"{shorten(names, 300)} (GET /v1/models lists them)",
                param="model",
            )

    async def decode(self, request: Request[Any, Any, Any], decoder: Decoder[Body]) -> tuple[Body, tuple[str, ...]]:
        """The decoded body, and the names of the fields that were ignored.

        Raises:
            InvalidRequest: the body is not a valid request.
            HTTPException: the body is too large (413) or of another media type (415).
            Overloaded: all bodies in hand together are too large.
            RequestTimeout: it arrives too slowly.
        """
        try:
            _check_media_type(request)
            raw = await request.body()
        except (HTTPException, Overloaded):
            await discard_body(request.scope, request.receive)
            raise
        return await self.work(request, partial(decoder.decode, raw, self.settings.unknown_fields))

    async def work(self, request: Request[Any, Any, Any], call: Callable[[], Result]) -> Result:
        """What `call` gives or raises; on a thread if the body is long, so it may touch nothing but the body.

        A cancelled caller waits until the thread is done.
        """
        if len(await request.body()) <= MAX_BYTES_ON_LOOP:
            return call()
        return await anyio.to_thread.run_sync(call, limiter=self._decoding)

    def request(
        self,
        request: Request[Any, Any, Any],
        answer_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        model: str,
        priority: int | None = None,
        cache_salt: str | None = None,
        reasoning: ReasoningFormat | None = None,
        truncation: Truncation | None = None,
        return_token_offsets: bool | None = None,
        limits: object = None,
    ) -> GenerationRequest:
        """The engine's request behind `request`. Its id is ours, never the client's: two clients may send the same.

        Args:
            limits: a decoded body that may have limits of time; headers may have them for every endpoint.

        Raises:
            InvalidRequest: a header has an impossible value.
            Forbidden: its principal may not have this priority, or not have it recorded.
        """
        principal: Principal = request.scope["user"]
        principal.check_priority(priority or 0)
        return GenerationRequest(
            request_id=answer_id,
            prompt=prompt,
            sampling=sampling,
            priority=priority or 0,
            cache_salt=principal.cache_salt(cache_salt, private=self.settings.private_caches),
            adapter=None if model == self.engine.model_name else model,
            owner=principal.name,
            max_owner_requests=principal.max_num_requests,
            share=self._share(request, principal),
            reasoning=reasoning,
            truncation=truncation,
            return_token_offsets=bool(return_token_offsets),
            deadlines=deadlines(request.headers, limits),
            record_id=record_id(request, answer_id),
            http_request_id=request_id(request.scope),
            trace_context=exchange_of(request.scope).open(),
        )

    def _share(self, request: Request[Any, Any, Any], principal: Principal) -> Share:
        """Whose turn a request takes: the key's, or that of the one for whom a gateway with that key asks.

        Raises:
            InvalidRequest: two are named, by the gateway and by its client, say.
        """
        header = self.settings.share_header
        if header is None:
            return principal.share(None)
        names = request.headers.getall(header, [])
        if len(names) > 1:
            raise InvalidRequest(
                f"{header} comes {len(names)} times; send it once, and have a gateway replace what its clients send",
                param=header,
            )
        return principal.share(names[0] if names else None)

    def streamed(
        self,
        request: Request[Any, Any, Any],
        requests: Sequence[GenerationRequest],
        writer: FrameWriter,
        headers: Mapping[str, str],
    ) -> ASGIApp:
        """The response that streams what `writer` makes of the answers to `requests`, resumable if the client asks.

        Raises:
            InvalidRequest: a header that says how to stream has an impossible value.
        """
        options = stream_options(request.headers, self.settings)
        requests = [msgspec.structs.replace(each, streams=True) for each in requests]
        if options.grace_seconds is None:
            return StreamedAnswer(self.engine, requests, writer, self.settings, headers, options.progress_seconds)
        return ResumableAnswer(
            self.recordings,
            request.scope["user"].name,
            requests,
            writer,
            self.settings,
            headers,
            options.grace_seconds,
            options.progress_seconds,
        )

    def check_template(self, template: str | None) -> None:
        """Raises UnsupportedField if a request brings a chat template of its own and may not."""
        if template is not None and not self.settings.trust_request_chat_template:
            raise UnsupportedField(
                "chat_template is not supported: this server renders with the model's own template unless it is "
                "started with --trust-request-chat-template; chat_template_kwargs can set the template's variables",
                param="chat_template",
            )

    def _adapter_names(self) -> list[str]:
        return [adapter.name for adapter in self.engine.adapters]

    def report_ignored(self, ignored: tuple[str, ...]) -> dict[str, str]:
        """The header that names ignored fields; each is logged once."""
        if not ignored:
            return {}
        names = sorted({_header_safe(re.sub(r"\[\d+\]", "[]", name)) for name in ignored})
        for name in names:
            if name not in self._logged_fields and len(self._logged_fields) < MAX_LOGGED_FIELDS:
                self._logged_fields.add(name)
                logger.warning("ignoring the unknown request field %s (said once)", name)
        shown = names[:MAX_NAMED_FIELDS]
        rest = [f"and-{len(names) - len(shown)}-more"] if len(names) > len(shown) else []
        return {IGNORED_FIELDS_HEADER: ", ".join([*shown, *rest])}


def new_id(prefix: str) -> str:
    """A fresh id of a response."""
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """`created` of a response, in Unix seconds."""
    return int(time.time())


def _header_safe(name: str) -> str:
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-.[]") else "?" for letter in name[:64]
    )


def _check_media_type(request: Request[Any, Any, Any]) -> None:
    """JSON, or what `curl -d` says when it is not told otherwise.

    A web page may send the latter (and nothing at all) to any server without asking it first; browsers then name the
    page in `Origin`, so that a request with an `Origin` must say that it is JSON.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    if media_type in ("", FORM_TYPE) and "origin" not in request.headers:
        return
    raise HTTPException(
        status_code=415,
        detail=f"The content-type is {quoted(media_type)}; send JSON with content-type: application/json",
    )
