"""Errors on the wire: one OpenAI-shaped object for every way a request can fail."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.types import ExceptionHandlersMap

from limelight.errors import (
    DeadlineExceeded,
    EngineFailed,
    EngineNotRunning,
    LimelightError,
    Overloaded,
    RequestTimeout,
    ShareExceeded,
    StepFailure,
)
from limelight.http.exchange import exchange_of
from limelight.http.request_id import request_id
from limelight.quoting import shorten
from limelight.telemetry.log_fields import of_http_request, without_message

logger = logging.getLogger(__name__)

LOADING_RETRY_SECONDS = 5.0
MAX_RETRY_SECONDS = 110.0
"""The official client ignores a wait above 120 seconds and retries at once, unless it is told not to retry."""
MAX_MESSAGE_CHARACTERS = 600

_LOGGED = "the server's log has the cause under this request_id"
_PUBLIC_MESSAGES: Mapping[type[LimelightError], str] = {
    StepFailure: f"The forward pass that carried this request failed; {_LOGGED}",
    EngineFailed: f"The engine has failed and must be restarted; {_LOGGED}",
}
"""Faults of ours: their own message is for the log, it may name internals."""


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """The `error` object of the OpenAI API, with the id to look for in the server's log."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str


class ErrorBody(msgspec.Struct, frozen=True):
    """A whole error response, and the payload of an error frame in a stream."""

    error: ErrorObject


ErrorShape = Callable[[ErrorObject, int], msgspec.Struct]
"""Makes the body of an error response from the error and its HTTP status."""
ERROR_SHAPE = "error_shape"
"""`opt` of a route that speaks another API than OpenAI's: its `ErrorShape`."""
ERROR_STATUSES = "error_statuses"
"""`opt` of such a route: HTTP statuses by `type` of the error, where they are others than ours."""


def error_body(error: LimelightError, scope: Any) -> ErrorBody:
    """The wire form of `error`."""
    return ErrorBody(
        ErrorObject(
            message=shorten(_PUBLIC_MESSAGES.get(type(error), error.message), MAX_MESSAGE_CHARACTERS),
            type=error.type,
            param=None if error.param is None else shorten(error.param),
            code=error.code,
            request_id=request_id(scope),
        )
    )


def exception_handlers() -> ExceptionHandlersMap:
    """Litestar's map: our own errors, those of the framework, and bugs."""
    return {LimelightError: _limelight_error, HTTPException: _framework_error, Exception: _unexpected_error}


def _limelight_error(request: Request[Any, Any, Any], error: LimelightError) -> Response[msgspec.Struct]:
    log_failure(error, request.scope)
    return _response(request, error_body(error, request.scope), error.status, _headers(error))


def _response(
    request: Request[Any, Any, Any], body: ErrorBody, status: int, headers: Mapping[str, str] | None
) -> Response[msgspec.Struct]:
    """`body` in the shape of the API that the route speaks."""
    exchange_of(request.scope).refused(body.error.code)
    handler = request.scope.get("route_handler")
    opt: Mapping[str, Any] = handler.opt if isinstance(handler, HTTPRouteHandler) else {}
    shape: ErrorShape | None = opt.get(ERROR_SHAPE)
    status = opt.get(ERROR_STATUSES, {}).get(body.error.type, status)
    content: msgspec.Struct = body if shape is None else shape(body.error, status)
    return Response(content, status_code=status, headers=dict(headers or {}), media_type="application/json")


def log_failure(error: LimelightError, scope: Any) -> None:
    """Write a fault of ours to the log, under the id that the client is told."""
    if error.status == 500:  # what met the cause has logged it, once for all requests that it failed
        logger.error(
            "request %s failed: %s: %s",
            request_id(scope),
            type(error).__name__,
            error.message,
            extra=of_http_request(request_id(scope)),
        )


def log_bug(what: str, error: Exception, scope: Any) -> None:
    """Write an unexpected error to the log, where it came from and not what it quotes. `what` has a %s for the id."""
    name = request_id(scope)
    logger.error(what, name, exc_info=without_message(error), extra=of_http_request(name))


def _headers(error: LimelightError) -> dict[str, str]:
    if error.status == 401:
        return {"www-authenticate": 'Bearer realm="limelight"'}
    if isinstance(error, ShareExceeded) and error.retry_after_seconds > MAX_RETRY_SECONDS:
        return {**_exactly_after(error.retry_after_seconds), "x-should-retry": "false"}
    if isinstance(error, Overloaded):
        return _retry_after(error.retry_after_seconds)
    if isinstance(error, EngineNotRunning):
        return _retry_after(LOADING_RETRY_SECONDS)
    if isinstance(error, RequestTimeout):
        return {"connection": "close"}  # the rest of the body may never come
    if isinstance(error, DeadlineExceeded):
        return {"x-should-retry": "false"}  # who had no more time has none for another try
    return {}


def _retry_after(seconds: float) -> dict[str, str]:
    return _exactly_after(min(max(seconds, 0.0), MAX_RETRY_SECONDS))


def _exactly_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, math.ceil(seconds))), "retry-after-ms": str(math.ceil(seconds * 1000))}


def _framework_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[msgspec.Struct]:
    """Unknown routes, wrong methods, oversized bodies and what else Litestar itself refuses."""
    path = shorten(request.scope["path"])
    kinds = {
        404: ("not_found", f"There is no route {request.method} {path}; the API lives under /v1"),
        405: ("method_not_allowed", f"{path} does not answer {request.method}"),
        413: ("payload_too_large", f"The request body is over the limit of {_body_limit(request)} bytes"),
        415: ("unsupported_media_type", error.detail),
    }
    code, message = kinds.get(error.status_code, ("bad_request", error.detail or "The request was refused"))
    if error.status_code >= 500:
        code, message = "internal_error", "The server could not read the request"
    body = ErrorObject(
        message=shorten(message, MAX_MESSAGE_CHARACTERS),
        type="invalid_request_error" if error.status_code < 500 else "server_error",
        param=None,
        code=code,
        request_id=request_id(request.scope),
    )
    return _response(request, ErrorBody(body), error.status_code, error.headers)


def _body_limit(request: Request[Any, Any, Any]) -> Any:
    handler = request.scope.get("route_handler")
    return handler.resolve_request_max_body_size() if isinstance(handler, HTTPRouteHandler) else "this server's"


def _unexpected_error(request: Request[Any, Any, Any], error: Exception) -> Response[msgspec.Struct]:
    """A bug of ours: the log has the traceback, the client has the id to find it by."""
    log_bug("request %s met a bug", error, request.scope)
    return _response(request, internal_error(request.scope), 500, None)


def internal_error(scope: Any) -> ErrorBody:
    """What a client learns about an unexpected fault: nothing but where to look."""
    return error_body(LimelightError(f"Internal error; {_LOGGED}"), scope)
