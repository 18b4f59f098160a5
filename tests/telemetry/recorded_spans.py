"""A tracer provider whose finished spans stay here, to be looked at."""

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind


class RecordedSpans:
    """Keeps finished spans.

    Args:
        options: of the provider.

    Attributes:
        provider: to be given to an engine.
    """

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        """Every finished span, in the order of the ends."""
        return list(self._exporter.get_finished_spans())

    @property
    def server(self) -> list[ReadableSpan]:
        """Those of HTTP exchanges."""
        return [span for span in self.all if span.kind is SpanKind.SERVER]

    @property
    def requests(self) -> list[ReadableSpan]:
        """Those of the engine's requests."""
        return [span for span in self.all if "gen_ai.operation.name" in span.attributes]

    def below(self, parent: ReadableSpan) -> dict[str, ReadableSpan]:
        """The children of a span by name."""
        return {span.name: span for span in self.all if is_child(span, parent)}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Turns the loop until spans that satisfy `condition` have ended."""
        with anyio.fail_after(60):
            while not condition():
                await anyio.lowlevel.checkpoint()


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether `span` is directly below `parent`."""
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def is_linked(span: ReadableSpan, other: ReadableSpan) -> bool:
    """Whether `span` is linked to `other`, and in a trace of its own."""
    linked = [link.context.span_id for link in span.links]
    return linked == [other.context.span_id] and span.context.trace_id != other.context.trace_id


def seconds(span: ReadableSpan) -> float:
    """How long it took."""
    return (span.end_time - span.start_time) / 1e9
