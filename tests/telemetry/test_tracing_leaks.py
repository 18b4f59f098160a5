"""No span of ours is ever the current one, and however a caller leaves, each request's span ends exactly once."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.context import Context

from limelight.engine import Engine
from limelight.generation import Delta, SamplingParams
from tests.telemetry.traced import Traces

pytestmark = pytest.mark.anyio

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
NUM_REQUESTS = 50


@pytest.fixture(autouse=True)
def no_context_is_lost(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """OpenTelemetry logs "Failed to detach context" when a span was current across a yield."""
    with caplog.at_level(logging.WARNING):
        yield
    gc.collect()
    assert "detach" not in caplog.text


def check_aborted(traces: Traces, hosts: int = NUM_REQUESTS) -> None:
    """Each request has one span, aborted, in its own host's trace."""
    spans = traces.requests
    assert len(spans) == hosts
    assert {span.attributes["limelight.ending"] for span in spans} == {"aborted"}
    parents = {span.context.span_id: span for span in traces.spans if span.name == "host"}
    assert {span.parent.span_id for span in spans} == set(parents)
    for span in spans:
        assert span.context.trace_id == parents[span.parent.span_id].context.trace_id
        traces.tree(span)


async def test_a_stream_that_is_cut_ends_its_span() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        for _ in range(NUM_REQUESTS):
            with traces.tracer.start_as_current_span("host", context=Context()) as host:
                async with engine.stream("hello", ENDLESS) as stream:
                    for _ in range(2):
                        await anext(stream)
                        assert trace.get_current_span() is host
                assert trace.get_current_span() is host
        await engine.drain(5)
    check_aborted(traces)


async def test_a_cancelled_task_ends_its_span() -> None:
    traces = Traces()

    async def host(engine: Engine) -> None:
        with traces.tracer.start_as_current_span("host", context=Context()):
            await engine.generate("hello", ENDLESS)

    async with traces.engine(step_seconds=0.001) as engine:
        tasks = [asyncio.create_task(host(engine)) for _ in range(NUM_REQUESTS)]
        await anyio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await engine.drain(5)
    check_aborted(traces)


async def test_a_generator_of_the_host_that_is_abandoned_ends_its_span_wherever_it_is_closed() -> None:
    traces = Traces()

    async def deltas(engine: Engine) -> AsyncIterator[Delta]:
        async with engine.stream("hello", ENDLESS) as stream:
            async for delta in stream:
                yield delta

    async def begin(engine: Engine) -> AsyncIterator[Delta]:
        """In a task of its own, whose context is gone when the generator is closed."""
        with traces.tracer.start_as_current_span("host", context=Context()) as host:
            generator = deltas(engine)
            await anext(generator)
            assert trace.get_current_span() is host
            return generator

    async with traces.engine() as engine:
        for number in range(NUM_REQUESTS):
            generator = await asyncio.create_task(begin(engine))
            if number % 2:
                await generator.aclose()
            del generator
        gc.collect()
        await engine.drain(5)
    check_aborted(traces)


async def test_a_stream_that_another_task_closes_ends_its_span() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        for _ in range(NUM_REQUESTS):
            stack = contextlib.AsyncExitStack()
            with traces.tracer.start_as_current_span("host", context=Context()):
                stream = await stack.enter_async_context(engine.stream("hello", ENDLESS))
            await anext(stream)
            await asyncio.create_task(stack.aclose())
        await engine.drain(5)
    check_aborted(traces)


async def test_what_an_engine_runs_has_no_callers_span() -> None:
    """Neither the actors nor work in the background keep the context of whoever started the engine."""
    traces = Traces()
    seen: list[trace.Span] = []

    async def work() -> None:
        seen.append(trace.get_current_span())

    def before_step(_: object) -> None:
        seen.append(trace.get_current_span())

    with traces.tracer.start_as_current_span("host"):
        async with traces.engine(before_step=before_step) as engine:
            await engine.generate("hello", SamplingParams(max_tokens=2))
            engine.run_in_background(work, "work")
            await engine.drain(5)
    assert len(seen) >= 2
    assert {span.get_span_context().is_valid for span in seen} == {False}
