"""Spans of steps: who was in the batch when a token was late, and where the step's time went."""

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode

from limelight.engine import Engine
from limelight.errors import StepFailure
from limelight.generation import GenerationRequest, SamplingParams, TextPrompt
from limelight.step import Step
from limelight.structured_outputs import StructuredOutputsParams
from limelight.telemetry.step_spans import MAX_LINKS
from tests.telemetry.traced import Traces, remote_parent, root_id

pytestmark = pytest.mark.anyio

ALL_ALONG = SamplingParams(max_tokens=30, ignore_eos=True)


async def generate_together(engine: Engine, number: int, params: SamplingParams = ALL_ALONG) -> None:
    async with anyio.create_task_group() as group:
        for index in range(number):
            group.start_soon(lambda index=index: engine.generate(f"hello {index}", params, request_id=str(index)))


async def test_one_step_in_so_many_has_a_span_in_a_trace_of_its_own() -> None:
    traces = Traces()
    with traces.tracer.start_as_current_span("host"):
        async with traces.engine(step_seconds=0.001, trace_step_interval=8) as engine:
            await generate_together(engine, 3)
            num_steps = engine.statistics().num_steps
    steps = traces.named("step")
    numbers = [span.attributes["limelight.step.number"] for span in steps]
    assert numbers == list(range(0, numbers[-1] + 1, 8))
    assert num_steps - 8 <= numbers[-1] < num_steps
    assert all(span.parent is None for span in steps)
    assert len({span.context.trace_id for span in [*steps, *traces.requests]}) == len(steps) + 1


async def test_a_step_is_linked_to_the_requests_in_its_batch_and_says_what_it_did() -> None:
    traces = Traces()
    async with traces.engine(step_seconds=0.002, trace_step_interval=1) as engine:
        await generate_together(engine, 3, SamplingParams(n=2, max_tokens=30, ignore_eos=True))
    contexts = {span.attributes["limelight.request.id"]: span.context for span in traces.requests}
    full = [span for span in traces.named("step") if span.attributes["limelight.step.num_requests"] == 3]
    assert full
    for span in full:
        links = {link.attributes["limelight.request.id"]: link.context for link in span.links}
        assert links == contexts
        assert span.attributes["limelight.step.num_chunks"] == 6
        assert span.attributes["limelight.step.stalled"] is False
        assert "limelight.step.links_left_out" not in span.attributes
    decoding = full[-1].attributes
    assert (decoding["limelight.step.prefill_tokens"], decoding["limelight.step.decode_tokens"]) == (0, 6)
    first = traces.named("step")[0]
    assert first.attributes["limelight.step.decode_tokens"] == 0
    assert first.attributes["limelight.step.prefill_tokens"] > 6
    assert first.attributes["limelight.step.num_prefill_chunks"] == first.attributes["limelight.step.num_chunks"]
    parts = ("wait", "submit", "mask", "result")
    assert sum(first.attributes[f"limelight.step.{part}_seconds"] for part in parts) == pytest.approx(
        (first.end_time - first.start_time) / 1e9, abs=1e-5
    )


def stall_at(step_number: int, seconds: float) -> Callable[[Step], None]:
    def before_step(step: Step) -> None:
        if step.number == step_number:
            time.sleep(seconds)

    return before_step


async def test_a_step_that_stalls_has_a_span_whatever_is_sampled_and_is_found_from_the_late_token() -> None:
    traces = Traces()
    engine = traces.engine(before_step=stall_at(10, 0.3), stall_seconds=0.25, trace_step_interval=0)
    async with engine:
        await generate_together(engine, 2)
    (step,) = [span for span in traces.named("step") if span.attributes["limelight.step.number"] == 10]
    assert step.attributes["limelight.step.stalled"] is True
    assert step.attributes["limelight.step.longest_part"] == "submit"
    assert step.attributes["limelight.step.busy_seconds"] >= 0.3
    assert {link.context.span_id for link in step.links} == {root_id(span) for span in traces.requests}
    for root in traces.requests:
        stalls = [event for event in traces.below(root)["decode"].events if event.name == "stall"]
        assert len(stalls) == root.attributes["limelight.num_stalls"]
        (stall,) = [event for event in stalls if event.attributes["limelight.step.number"] == 10]
        assert stall.attributes["limelight.stall.seconds"] >= 0.3
        assert step.start_time <= stall.timestamp


async def test_a_step_that_fails_has_a_span_that_leads_to_the_requests_that_it_lost() -> None:
    traces = Traces()

    def before_step(step: Step) -> None:
        if step.number == 10:
            raise KeyError("secret")

    engine = traces.engine(before_step=before_step, step_seconds=0.001)
    async with engine:
        outcomes = await asyncio.gather(
            *[engine.generate(f"hello {number}", ALL_ALONG, request_id=str(number)) for number in range(3)],
            return_exceptions=True,
        )
    assert all(isinstance(outcome, StepFailure) for outcome in outcomes)
    (step,) = traces.named("step")
    assert step.status.status_code is StatusCode.ERROR
    assert step.attributes["error.type"] == "KeyError"
    assert step.attributes["limelight.step.number"] == 10
    assert step.attributes["limelight.step.stalled"] is False
    assert "secret" not in step.to_json()
    assert {link.context.span_id for link in step.links} == {root_id(span) for span in traces.requests}
    assert {span.attributes["error.type"] for span in traces.requests} == {"step_failed"}


async def test_a_step_that_waits_for_masks_says_so() -> None:
    traces = Traces()
    params = SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(regex="[a-z]{1,5}"))
    async with traces.engine(trace_step_interval=1) as engine:
        await engine.generate("hello", params)
    assert any(span.attributes["limelight.step.mask_seconds"] > 0 for span in traces.named("step"))


async def test_steps_without_a_recorded_request_have_no_span() -> None:
    traces = Traces(ParentBased(ALWAYS_OFF))
    engine = traces.engine(before_step=stall_at(3, 0.06), stall_seconds=0.05, trace_step_interval=1)
    async with engine:
        await generate_together(engine, 2)
    assert not traces.spans


async def test_only_requests_that_are_sampled_are_linked() -> None:
    traces = Traces()
    params = SamplingParams(max_tokens=20, ignore_eos=True)

    async def call(engine: Engine, number: int) -> None:
        request = GenerationRequest(
            request_id=str(number),
            prompt=TextPrompt("hello"),
            sampling=params,
            trace_context=remote_parent(number, sampled=number == 1),
        )
        async with engine.open(request) as stream:
            await stream.result()

    async with traces.engine(step_seconds=0.001, trace_step_interval=1) as engine, anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(call, engine, number)
    steps = traces.named("step")
    assert any(span.attributes["limelight.step.num_requests"] == 3 for span in steps)
    assert {link.attributes["limelight.request.id"] for span in steps for link in span.links} == {"1"}


async def test_more_links_than_an_sdk_keeps_are_left_out_and_counted() -> None:
    traces = Traces()
    number = MAX_LINKS + 20
    engine = traces.engine(num_pages=2048, step_seconds=0.002, trace_step_interval=1, max_num_seqs=number)
    async with engine:
        await generate_together(engine, number)
    fullest = max(traces.named("step"), key=lambda span: span.attributes["limelight.step.num_requests"])
    assert fullest.attributes["limelight.step.num_requests"] == number
    assert len(fullest.links) == MAX_LINKS
    assert fullest.attributes["limelight.step.links_left_out"] == 20
