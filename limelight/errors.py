"""The whole error tree. Every error that a caller can meet is one of these types.

Each class carries, as class data, the HTTP status and the `code` and `type` of the OpenAI error object, so that
`http/` maps an error without knowing it. A message names the value, the limit and the fix.
"""

import copy
from typing import ClassVar, Self

from limelight.quoting import shorten

MAX_MESSAGE_CHARACTERS = 4000
"""Longest message about a model's files; ours list at most a few dozen names."""


class LimelightError(Exception):
    """Root of the tree.

    Attributes:
        status: HTTP status for this kind of error.
        code: machine-readable code of the OpenAI error object, or None.
        type: `type` of the OpenAI error object.
        param: the request field at fault (`"messages[0].role"`), or None.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str | None] = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def again(self) -> Self:
        """An equal error of its own, for one more who must hear of the same failure.

        Raising writes traceback and context into an error, so each raise of a shared one needs its own copy.
        """
        error = copy.copy(self)
        error.__cause__ = self.__cause__
        return error


class InvalidRequest(LimelightError):
    """The request can never succeed as it stands; retrying is useless."""

    status = 400
    code = "invalid_value"
    type = "invalid_request_error"


class UnsupportedField(InvalidRequest):
    """A known field of this or another API that Limelight does not honour."""

    code = "unsupported_parameter"


class UnknownField(InvalidRequest):
    """A field that no supported API has, close to one that exists."""

    code = "unknown_parameter"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for one token, in the context or in the whole KV cache."""

    code = "context_length_exceeded"


class Unauthorized(LimelightError):
    """No API key, or a wrong one."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class Forbidden(LimelightError):
    """A valid key without the scope that the route needs, or a `Host` that is not allowed."""

    status = 403
    code = "permission_denied"
    type = "permission_error"


class ModelNotFound(LimelightError):
    """The request names a model that is not served."""

    status = 404
    code = "model_not_found"
    type = "invalid_request_error"


class StreamNotFound(LimelightError):
    """No stream with this id, or it belongs to somebody else: the two look the same."""

    status = 404
    code = "stream_not_found"
    type = "invalid_request_error"


class StreamGone(LimelightError):
    """The frames that a reader asks for were kept for a while and are not any more."""

    status = 410
    code = "stream_gone"
    type = "invalid_request_error"


class ResponseNotFound(LimelightError):
    """No response with this id is stored, or it belongs to somebody else: the two look the same."""

    status = 404
    code = "response_not_found"
    type = "invalid_request_error"


class RequestNotFound(LimelightError):
    """No request with this id is live or remembered; for those who may only end their own, nor is anybody else's."""

    status = 404
    code = "request_not_found"
    type = "invalid_request_error"


class RecordNotFound(LimelightError):
    """No replay bundle with this id is there."""

    status = 404
    code = "record_not_found"
    type = "invalid_request_error"


class RequestTimeout(LimelightError):
    """The body of the request arrived too slowly."""

    status = 408
    code = "request_timeout"
    type = "timeout_error"


class PayloadTooLarge(LimelightError):
    """The request body is over the limit."""

    status = 413
    code = "payload_too_large"
    type = "invalid_request_error"


class Overloaded(LimelightError):
    """Admission refused the request: the server is full or draining. Retrying later may succeed.

    Attributes:
        retry_after_seconds: when to try again.
    """

    status = 503
    code = "overloaded"
    type = "overloaded_error"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ShareExceeded(Overloaded):
    """The caller has as much as it may have; others are still served. Retrying later may succeed."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"


class RequestCancelled(LimelightError):
    """Somebody ended the request before it had finished."""

    status = 499
    code = "request_cancelled"


class RequestExpired(RequestCancelled):
    """A time limit of the request ran out before it had finished."""

    code = "request_expired"


class DeadlineExceeded(RequestExpired):
    """A limit of time that the request brought ran out, or would for certain, before it had a token to show."""

    status = 504
    code = "deadline_exceeded"
    type = "timeout_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)


class StepFailure(LimelightError):
    """The forward pass that carried this request failed. Other requests go on."""

    code = "step_failed"


class EngineFailed(LimelightError):
    """An actor died: the engine can serve nobody any more and must be restarted."""

    status = 500
    code = "engine_failed"


class EngineNotRunning(LimelightError):
    """The engine has not been started, is still loading, or has been stopped."""

    status = 503
    code = "engine_not_running"
    type = "overloaded_error"


class NotOnAsyncio(EngineNotRunning):
    """The caller does not run on asyncio, but on trio, say."""

    def __init__(self) -> None:
        super().__init__(
            "this coroutine does not run on asyncio, where an engine lives; run it with `asyncio.run(...)` or "
            "`anyio.run(..., backend='asyncio')`; in a program of trio, use the class LLM in a thread"
        )


class ConfigError(LimelightError, ValueError):
    """A configuration value is out of range or contradicts another one."""

    code = "invalid_config"


class ModelError(LimelightError):
    """A model cannot be found, read, understood or fitted into memory.

    Messages quote names and values that stand in foreign files, so they are made fit for a line of a terminal or log:
    what cannot be printed is escaped, and the middle of a very long one is left out.
    """

    code = "model_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(_one_line(message), param=param)


class CheckpointError(ModelError):
    """The model's files are missing, corrupt or contradict each other."""


class UnsupportedModel(ModelError):
    """The model's files are fine, but Limelight does not run this architecture or format."""


class OutOfMemory(ModelError):
    """The model does not fit. The message holds the memory plan and the smallest change that fits."""


def _one_line(message: str) -> str:
    message = shorten(message, MAX_MESSAGE_CHARACTERS)
    if message.isprintable():
        return message
    # repr escapes what is not printable; backslashes and quotes stay as they are.
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)
