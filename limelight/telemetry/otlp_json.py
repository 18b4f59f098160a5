"""The spans of one request as OTLP in JSON: an `ExportTraceServiceRequest` that any collector or viewer takes.

Ids are hexadecimal and times are strings of Unix nanoseconds, as the OTLP specification has it for JSON. Errors are
told by their codes: whoever may observe gets this, and a message may quote the request.
"""

import hashlib
from typing import Any

from opentelemetry import trace

from limelight import __version__
from limelight.telemetry import conventions as names
from limelight.telemetry.request_attributes import Attributes, AttributeValue, error_type
from limelight.telemetry.span_tree import REQUEST, SpanEvent, SpanRecord, spans_of
from limelight.telemetry.timeline import RequestTimeline

KIND_INTERNAL = 1
STATUS_ERROR = 2
SAMPLED = 1
"""`Span.flags`: the W3C trace flags."""


def otlp_json(timeline: RequestTimeline, now: float | None = None) -> dict[str, Any]:
    """All spans of a request, under the ids that they have in its trace, or under ids made of the request's.

    Args:
        now: as in `spans_of`.
    """
    ids = _Ids(timeline)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": names.SCOPE})},
                "scopeSpans": [
                    {
                        "scope": {"name": names.SCOPE, "version": __version__},
                        "spans": [_span(record, timeline, ids) for record in spans_of(timeline, now)],
                    }
                ],
            }
        ]
    }


class _Ids:
    """Those of real spans where there are some; else the same ones in every export of a request."""

    def __init__(self, timeline: RequestTimeline) -> None:
        self._timeline = timeline
        context = timeline.span.get_span_context()
        real = context.is_valid and REQUEST in timeline.span_ids
        self.trace_id = trace.format_trace_id(context.trace_id) if real else self._derived("", num_bytes=16)

    def span_id(self, key: str | None) -> str:
        """Of the span with this key; None: of the span above the request's, or an empty id."""
        if key is None:
            return self._timeline.parent_span_id or ""
        return self._timeline.span_ids.get(key) or self._derived(key, num_bytes=8)

    def _derived(self, key: str, num_bytes: int) -> str:
        timeline = self._timeline
        name = f"{timeline.request_id} {timeline.unix_ns(timeline.arrived_at)} {key}"
        return hashlib.sha256(name.encode()).hexdigest()[: 2 * num_bytes]


def _span(record: SpanRecord, timeline: RequestTimeline, ids: _Ids) -> dict[str, Any]:
    return {
        "traceId": ids.trace_id,
        "spanId": ids.span_id(record.key),
        "parentSpanId": ids.span_id(record.parent),
        "flags": SAMPLED,
        "name": record.name,
        "kind": KIND_INTERNAL,
        "startTimeUnixNano": str(timeline.unix_ns(record.start)),
        "endTimeUnixNano": str(timeline.unix_ns(record.end)),
        "attributes": _attributes(record.attributes),
        "events": [_event(event, timeline) for event in record.events],
        "status": {} if record.error is None else {"code": STATUS_ERROR, "message": error_type(timeline)},
    }


def _event(event: SpanEvent, timeline: RequestTimeline) -> dict[str, Any]:
    return {
        "timeUnixNano": str(timeline.unix_ns(event.at)),
        "name": event.name,
        "attributes": _attributes(event.attributes),
    }


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: AttributeValue) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}
