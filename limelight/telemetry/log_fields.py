"""Which request a log record is about, and errors without what they may quote of it.

The library configures no logging: these are attributes of records (`extra=`), which any formatter can show.
"""

from typing import Any

from limelight.telemetry.timeline import RequestTimeline

ID_FIELDS = ("request_id", "http_request_id", "trace_id", "span_id")
"""Attributes of records about a request, each where it is known. The ids of traces and spans are hexadecimal."""

MAX_CHAIN = 8
"""Causes of one error that are logged."""


def of_request(request_id: str) -> dict[str, str]:
    """Of a record about one request of the engine, where nothing else is known of it."""
    return {"request_id": request_id}


def of_timeline(timeline: RequestTimeline) -> dict[str, str]:
    """Of a record about one request of the engine."""
    fields = of_request(timeline.request_id)
    if timeline.http_request_id is not None:
        fields["http_request_id"] = timeline.http_request_id
    return fields | of_span(timeline.span)


def of_http_request(http_request_id: str, span: Any = None) -> dict[str, str]:
    """Of a record about one HTTP request. `span`: its OpenTelemetry span, if there is one."""
    return {"http_request_id": http_request_id} | of_span(span)


def of_span(span: Any) -> dict[str, str]:
    """The trace and the span to look for; nothing where nobody traces."""
    context = None if span is None else span.get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


class WithheldError(Exception):
    """Stands in a log for an error whose message may quote a request: what kind it was, and where it came from."""


def without_message(error: BaseException) -> Exception:
    """What may be logged of `error` as `exc_info`: types and tracebacks of it and its causes, without their messages.

    Libraries quote in their messages what they were given, and that is a prompt or an answer.
    """
    return _stand_in(error, MAX_CHAIN)


def _stand_in(error: BaseException, num_left: int) -> Exception:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    what = f"{name} (its message may quote the request)"
    shown: Exception = WithheldError(what)
    if isinstance(error, BaseExceptionGroup) and num_left:
        shown = ExceptionGroup(what, [_stand_in(part, num_left - 1) for part in error.exceptions[:MAX_CHAIN]])
    shown.__traceback__ = error.__traceback__
    shown.__suppress_context__ = error.__suppress_context__
    if num_left:
        if error.__cause__ is not None:
            shown.__cause__ = _stand_in(error.__cause__, num_left - 1)
        elif error.__context__ is not None:
            shown.__context__ = _stand_in(error.__context__, num_left - 1)
    return shown
