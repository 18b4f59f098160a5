"""One event loop, several engines and several tasks: nobody owns the loop, and nothing of one engine is the other's."""

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from limelight import Engine, SamplingParams
from limelight.engine import EngineState
from limelight.testing import scripted_engine, scripted_model

pytestmark = pytest.mark.anyio

WHOLE = SamplingParams(max_tokens=None)


class Observed:
    """An engine with a model, a registry and a tracer of its own."""

    def __init__(self, answer: str) -> None:
        self.spans = InMemorySpanExporter()
        self.registry = CollectorRegistry()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.engine = Engine(
            loader=scripted_model(answer),
            served_model_name=answer,
            tracer_provider=provider,
            metrics_registry=self.registry,
        )

    def requests_counted(self) -> float:
        """By its own registry, over all labels."""
        lines = generate_latest(self.registry).decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("limelight_requests_total{"))


async def test_two_engines_answer_count_and_trace_each_for_itself() -> None:
    first, second = Observed("first"), Observed("second")
    async with first.engine, second.engine:
        answers = await asyncio.gather(
            first.engine.generate("same", WHOLE, request_id="same"),
            second.engine.generate("same", WHOLE, request_id="same"),
            second.engine.generate("another", WHOLE),
        )
        assert [answer.text for answer in answers] == ["first", "second", "second"]
        assert (first.requests_counted(), second.requests_counted()) == (1, 2)
        assert first.engine.abort("same") is False
    models = [
        {(span.attributes or {}).get("gen_ai.request.model") for span in observed.spans.get_finished_spans()}
        for observed in (first, second)
    ]
    assert [kinds - {None} for kinds in models] == [{"first"}, {"second"}]


async def test_one_engine_may_fail_to_start_or_stop_while_the_other_serves() -> None:
    async with scripted_engine("here", step_seconds=0.001) as engine:
        asked = asyncio.create_task(engine.generate("x", WHOLE))
        broken = Engine("broken", loader=lambda _config, _report: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await broken.start()
        async with scripted_engine("there") as other:
            assert (await other.generate("x", WHOLE)).text == "there"
        assert (await asked).text == "here"
        assert engine.state is EngineState.READY


async def test_start_requests_and_stop_come_from_tasks_that_have_ended_since() -> None:
    engine = scripted_engine("hello")
    await asyncio.create_task(engine.start())
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(engine.generate(str(number), WHOLE)) for number in range(8)]
    assert {answer.result().text for answer in answers} == {"hello"}
    stops = [asyncio.create_task(engine.stop()) for _ in range(3)]
    await asyncio.gather(*stops)
    assert engine.state is EngineState.STOPPED


async def test_a_stream_is_opened_in_one_task_read_in_another_and_closed_in_a_third() -> None:
    async with scripted_engine("hello", step_seconds=0.001) as engine:
        entered = engine.stream("x", SamplingParams(max_tokens=None, ignore_eos=True))
        stream = await asyncio.create_task(entered.__aenter__())
        delta = await asyncio.create_task(stream.__anext__())
        assert delta.text.startswith("h")
        await asyncio.create_task(entered.__aexit__(None, None, None))
        async with asyncio.timeout(60):
            while engine.statistics().num_requests:
                await asyncio.sleep(0)
