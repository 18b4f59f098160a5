"""Engines whose spans are kept in memory."""

from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from limelight.engine import Engine
from limelight.step import Step
from limelight.testing import Script, babble, scripted_model
from tests.telemetry.trees import Node, check_tree, exported


class Traces:
    """A tracer provider, and what it has exported."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("host")

    def engine(
        self,
        script: Script = babble,
        *,
        num_pages: int = 512,
        before_step: Callable[[Step], None] | None = None,
        step_seconds: float = 0.0,
        **options: Any,
    ) -> Engine:
        """A scripted engine, not started, without spans of steps unless asked for."""
        loader = scripted_model(script, num_pages=num_pages, before_step=before_step, step_seconds=step_seconds)
        options = {"trace_step_interval": 0, "stall_seconds": 60.0, **options}
        return Engine("scripted", loader=loader, tracer_provider=self.provider, **options)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    @property
    def requests(self) -> list[ReadableSpan]:
        """The engine's spans of requests, in the order of their beginnings."""
        spans = [span for span in self.spans if "gen_ai.operation.name" in (span.attributes or {})]
        return sorted(spans, key=lambda span: span.start_time)

    def request(self, request_id: str) -> ReadableSpan:
        (span,) = [span for span in self.requests if span.attributes["limelight.request.id"] == request_id]
        return span

    def below(self, root: ReadableSpan) -> dict[str, ReadableSpan]:
        """Children of a span by name."""
        return {
            span.name: span for span in self.spans if span.parent is not None and span.parent.span_id == root_id(root)
        }

    def tree(self, root: ReadableSpan) -> list[Node]:
        """`root` and everything below it; checked."""
        inside = {root_id(root)}
        for _ in range(3):
            inside |= {span.context.span_id for span in self.spans if span.parent and span.parent.span_id in inside}
        spans = [span for span in self.spans if span.context.span_id in inside]
        assert {span.context.trace_id for span in spans} == {root.context.trace_id}
        nodes = exported(spans)
        check_tree(nodes, next(node for node in nodes if node.id == root_id(root)))
        return nodes


def root_id(span: ReadableSpan) -> int:
    return span.context.span_id


def remote_parent(number: int, *, sampled: bool = True) -> Context:
    """As if it had come in a header."""
    context = SpanContext(
        trace_id=0xABC000 + number,
        span_id=0xDEF000 + number,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT),
    )
    return set_span_in_context(NonRecordingSpan(context), Context())
