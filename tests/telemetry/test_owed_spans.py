"""Spans of ended requests are made in turns of the event loop that stay short, and none is forgotten."""

import asyncio
from collections import Counter

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from limelight.engine import Engine
from limelight.errors import EngineNotRunning
from limelight.generation import SamplingParams
from limelight.telemetry.owed_spans import SPANS_PER_TURN
from tests.telemetry.traced import Traces

pytestmark = pytest.mark.anyio

NUM_CHOICES = 100
MANY = SamplingParams(n=NUM_CHOICES, max_tokens=3)


class Turns(SpanProcessor):
    """Counts the spans that end in each turn of the running loop."""

    def __init__(self) -> None:
        self.num_spans: Counter[int] = Counter()
        self._number = 0
        self._next()

    def _next(self) -> None:
        self._number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def on_end(self, span: ReadableSpan) -> None:
        self.num_spans[self._number] += 1

    def stop(self) -> None:
        self._handle.cancel()


def wide_engine(traces: Traces) -> Engine:
    return traces.engine(num_pages=2048, max_num_seqs=NUM_CHOICES)


async def test_no_turn_of_the_loop_makes_many_spans_however_many_choices_and_requests_end() -> None:
    traces = Traces()
    turns = Turns()
    traces.provider.add_span_processor(turns)
    async with wide_engine(traces) as engine:
        await engine.generate("hello", MANY, request_id="wide")
        await asyncio.gather(*[engine.generate(str(number), SamplingParams(max_tokens=2)) for number in range(30)])
        assert await engine.drain(60)
        assert not engine.telemetry.live
        turns.stop()
        timelines = {timeline.request_id: timeline for timeline in engine.telemetry.recent}
    assert max(turns.num_spans.values()) <= SPANS_PER_TURN + 1
    assert len(traces.tree(traces.request("wide"))) == len(timelines["wide"].span_ids) == 1 + 2 + 4 * NUM_CHOICES
    assert len(traces.requests) == 31
    assert all(len(traces.tree(root)) == 6 for root in traces.requests[1:])


async def test_a_request_has_its_span_after_those_below_it() -> None:
    traces = Traces()
    async with wide_engine(traces) as engine:
        await engine.generate("hello", MANY)
    assert traces.spans[-1].name == "text_completion scripted"
    assert len(traces.spans) == 1 + 2 + 4 * NUM_CHOICES


async def test_an_engine_that_is_stopped_leaves_no_span_unmade() -> None:
    traces = Traces()
    engine = wide_engine(traces)
    await engine.start()
    callers = [asyncio.create_task(engine.generate("hello", MANY, request_id=str(number))) for number in range(3)]
    await asyncio.sleep(0.01)
    await engine.stop()
    num_spans = len(traces.spans)
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(outcome, EngineNotRunning) for outcome in outcomes)
    assert len(traces.requests) == 3
    for root in traces.requests:
        traces.tree(root)
    assert len(traces.spans) == num_spans
