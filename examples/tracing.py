"""Where did the time go? One request of an embedded engine, as spans below your own and as a waterfall in the terminal.

python examples/tracing.py "Name three colours"                                     spans are printed
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 python examples/tracing.py        they go to a collector
"""

import asyncio
import os
import sys

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

from limelight import Engine, SamplingParams
from limelight.telemetry.span_tree import SpanRecord, spans_of

WIDTH = 40


async def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "Name the capital of France."
    provider = TracerProvider(resource=Resource.create({"service.name": "tracing-example"}))
    provider.add_span_processor(BatchSpanProcessor(exporter(), max_export_batch_size=64))
    try:
        async with Engine(tracer_provider=provider) as engine:
            with provider.get_tracer("example").start_as_current_span("answer"):  # the request's span becomes its child
                messages = [{"role": "user", "content": question}]
                async with engine.stream_chat(messages, SamplingParams(temperature=0, max_tokens=40)) as stream:
                    answer = await stream.result()
            print(answer.text.strip(), end="\n\n")
            print(waterfall(spans_of(stream.timeline)), end="\n\n")
    finally:
        await asyncio.to_thread(provider.shutdown)  # it waits for the last export


def exporter() -> SpanExporter:
    if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
        return OTLPSpanExporter()  # which reads that variable
    return ConsoleSpanExporter(formatter=one_line)


def one_line(span: ReadableSpan) -> str:
    assert span.context is not None
    parent = "none" if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{span.name:<40} span {span.context.span_id:016x} parent {parent}\n"


def waterfall(spans: list[SpanRecord]) -> str:
    """A line for each span and each event; the first span is the whole request."""
    whole, *_ = spans
    depths = {whole.key: 0}
    lines = []
    for span in spans:
        if span.parent is not None:
            depths[span.key] = depths[span.parent] + 1
        indent = "  " * depths[span.key]
        begin, end = (round(WIDTH * (at - whole.start) / (whole.end - whole.start)) for at in (span.start, span.end))
        seconds = span.end - span.start
        lines.append(f"{indent + span.name:<34}{1000 * seconds:>9.1f} ms  {' ' * begin}{'#' * (end - begin) or '|'}")
        lines += [
            f"{indent + '  . ' + event.name:<34}{1000 * (event.at - whole.start):>9.1f} ms after the call"
            for event in span.events
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    asyncio.run(main())
