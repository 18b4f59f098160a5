"""One request as OTLP in JSON: what a collector reads of it is the tree that was traced."""

import base64
import json
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import given
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from limelight.errors import StepFailure
from limelight.generation import SamplingParams
from limelight.telemetry.otlp_json import otlp_json
from limelight.telemetry.span_tree import spans_of
from limelight.telemetry.timeline import RequestTimeline
from tests.telemetry.otlp_receiver import attributes_of
from tests.telemetry.test_span_tree import answered, end, lives, prepared
from tests.telemetry.traced import Traces

IDS = ("traceId", "spanId", "parentSpanId")


def parsed(document: dict[str, Any]) -> ExportTraceServiceRequest:
    """As a collector reads it: strictly by proto3's JSON mapping, but for ids, which OTLP has in hexadecimal."""
    document = json.loads(msgspec.json.encode(document))
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span.update({name: base64.b64encode(bytes.fromhex(span[name])).decode() for name in IDS})
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def spans_in(document: dict[str, Any]) -> list[Span]:
    (resource,) = parsed(document).resource_spans
    assert attributes_of(resource.resource.attributes) == {"service.name": "limelight"}
    (scope,) = resource.scope_spans
    assert scope.scope.name == "limelight"
    return list(scope.spans)


def test_names_times_attributes_and_events_are_those_of_the_tree() -> None:
    timeline = answered(prepared())
    records = spans_of(timeline)
    for span, record in zip(spans_in(otlp_json(timeline)), records, strict=True):
        assert span.name == record.name
        assert span.kind == Span.SPAN_KIND_INTERNAL
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (
            timeline.unix_ns(record.start),
            timeline.unix_ns(record.end),
        )
        expected = {name: list(v) if isinstance(v, tuple) else v for name, v in record.attributes.items()}
        assert attributes_of(span.attributes) == expected
        assert [type(value) for value in attributes_of(span.attributes).values()] == [
            type(value) for value in expected.values()
        ]
        assert [(event.name, event.time_unix_nano) for event in span.events] == [
            (event.name, timeline.unix_ns(event.at)) for event in record.events
        ]
        assert span.status.code == Status.STATUS_CODE_UNSET


def test_a_failed_request_has_the_status_of_an_error_whose_message_is_withheld() -> None:
    timeline = prepared()
    end(timeline, 1009.0, StepFailure("broken at secret"))
    document = otlp_json(timeline)
    root = spans_in(document)[0]
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "step_failed")
    assert "secret" not in json.dumps(document)


@given(lives())
def test_ids_make_the_tree_wherever_a_life_is_cut_off(life: tuple[RequestTimeline, float]) -> None:
    timeline, now = life
    spans = spans_in(otlp_json(timeline, now))
    by_key = dict(zip([record.key for record in spans_of(timeline, now)], spans, strict=True))
    for record in spans_of(timeline, now):
        span = by_key[record.key]
        assert (len(span.trace_id), len(span.span_id)) == (16, 8)
        assert span.trace_id == spans[0].trace_id
        assert span.parent_span_id == (by_key[record.parent].span_id if record.parent else b"")
    assert len({span.span_id for span in spans}) == len(spans)


def test_derived_ids_are_the_same_in_every_export_and_others_for_another_request() -> None:
    timeline = answered(prepared())
    other = answered(prepared())
    other.unix_offset_ns += 1
    assert otlp_json(timeline) == otlp_json(timeline)
    assert spans_in(otlp_json(timeline))[0].trace_id != spans_in(otlp_json(other))[0].trace_id


@pytest.mark.anyio
async def test_a_traced_request_has_the_ids_of_its_trace() -> None:
    traces = Traces()
    async with traces.engine(step_seconds=0.001) as engine:
        with traces.tracer.start_as_current_span("host"):
            await engine.generate("hello", SamplingParams(n=2, max_tokens=5))
        await engine.drain(5)
        (timeline,) = engine.telemetry.recent
        document = otlp_json(timeline)
    exported = {
        (span.context.trace_id, span.context.span_id, span.parent.span_id, span.name, span.start_time, span.end_time)
        for span in traces.spans
        if span.name != "host"
    }
    assert exported == {
        (
            int.from_bytes(span.trace_id),
            int.from_bytes(span.span_id),
            int.from_bytes(span.parent_span_id),
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
        )
        for span in spans_in(document)
    }
