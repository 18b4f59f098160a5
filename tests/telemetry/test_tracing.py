"""Spans of requests as a host's tracer provider gets them, through the Python API."""

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

import anyio
import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, SamplingResult, StaticSampler
from opentelemetry.trace import StatusCode

from limelight.engine import Engine
from limelight.errors import InvalidRequest, LimelightError, Overloaded, RequestCancelled, RequestExpired
from limelight.generation import GenerationRequest, SamplingParams, TextPrompt
from limelight.llm import LLM
from limelight.structured_outputs import StructuredOutputsParams
from limelight.testing import scripted_model
from tests.telemetry.traced import Traces, remote_parent, root_id

pytestmark = pytest.mark.anyio

SHORT = SamplingParams(max_tokens=5, temperature=0)
ENDLESS = SamplingParams(max_tokens=None)


def request(request_id: str, **fields: object) -> GenerationRequest:
    return GenerationRequest(**{"request_id": request_id, "prompt": TextPrompt("hello"), "sampling": SHORT, **fields})


# ---- parents


async def test_the_span_of_a_call_is_a_child_of_the_callers_current_one() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        with traces.tracer.start_as_current_span("host") as host:
            await engine.generate("hello", SHORT)
            assert trace.get_current_span() is host
    (span,) = traces.requests
    assert span.parent == host.get_span_context()
    assert span.name == "text_completion scripted"
    assert span.kind is trace.SpanKind.INTERNAL


async def test_a_given_context_comes_before_the_current_one() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        with traces.tracer.start_as_current_span("host"):
            async with engine.open(request("given", trace_context=remote_parent(1))) as stream:
                await stream.result()
            async with engine.open(request("root", trace_context=Context())) as stream:
                await stream.result()
    assert traces.request("given").parent.span_id == 0xDEF001
    assert traces.request("given").context.trace_id == 0xABC001
    assert traces.request("root").parent is None


async def test_without_a_parent_a_request_has_a_trace_of_its_own() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        await engine.generate("hello", SHORT)
        await engine.generate("hello", SHORT)
    first, second = traces.requests
    assert first.parent is second.parent is None
    assert first.context.trace_id != second.context.trace_id


async def test_requests_at_the_same_time_stay_in_their_own_traces() -> None:
    traces = Traces()

    async def call(number: int) -> None:
        with traces.tracer.start_as_current_span(f"host {number}", context=Context()) as host:
            await engine.generate(f"{number} " * 5, SHORT, request_id=str(number))
            assert trace.get_current_span() is host

    async with traces.engine(step_seconds=0.001) as engine, anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(call, number)
    for number in range(20):
        span, (host,) = traces.request(str(number)), traces.named(f"host {number}")
        assert span.parent == host.context
        assert len(traces.tree(span)) == 6


async def test_a_request_whose_parent_is_not_sampled_makes_no_spans() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        async with engine.open(request("r", trace_context=remote_parent(1, sampled=False))) as stream:
            await stream.result()
        (timeline,) = engine.telemetry.recent
    assert not traces.spans
    assert timeline.span.get_span_context().trace_id == 0xABC001
    assert timeline.span_ids == {}


def test_offline_requests_are_children_of_what_is_current_in_the_calling_thread() -> None:
    traces = Traces()
    with LLM.__new__(LLM) as llm:
        llm._start(traces.engine(), seed=None)
        with traces.tracer.start_as_current_span("host") as host:
            llm.generate(["one", "two"], SHORT, use_tqdm=False)
    assert [span.parent for span in traces.requests] == [host.get_span_context()] * 2


# ---- what they say


async def test_a_span_says_what_was_asked_and_what_came_of_it() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        await engine.chat([{"role": "user", "content": "secret"}], SHORT, request_id="r", priority=0)
    span = traces.request("r")
    assert span.name == "chat scripted"
    assert span.status.status_code is StatusCode.UNSET
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "limelight",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.id": "r",
        "gen_ai.response.model": "scripted",
        "gen_ai.request.temperature": 0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.usage.input_tokens": len("user: secret\nassistant:"),
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length",),
        "limelight.ending": "completed",
        "limelight.priority": 0,
    }
    assert {name: span.attributes[name] for name in expected} == expected
    assert "gen_ai.request.choice.count" not in span.attributes
    assert "gen_ai.request.stream" not in span.attributes
    everything = " ".join(span.to_json() for span in traces.spans)
    assert "secret" not in everything
    assert "gen_ai.latency" not in everything
    traces.tree(span)


async def test_streams_say_that_they_are_and_when_there_was_something_to_read() -> None:
    traces = Traces()
    messages = [{"role": "user", "content": "hello"}]
    async with traces.engine(step_seconds=0.002) as engine:
        read_after = []
        for stream in (engine.stream("hello", SHORT), engine.stream_chat(messages, SHORT)):
            began_at = time.monotonic()
            async with stream as running:
                await anext(running)
                read_after.append(time.monotonic() - began_at)
                await running.result()
    for span, seconds in zip(traces.requests, read_after, strict=True):
        first_chunk = span.attributes["gen_ai.response.time_to_first_chunk"]
        assert span.attributes["limelight.time_to_first_token"] <= first_chunk <= seconds
    assert [span.attributes["gen_ai.request.stream"] for span in traces.requests] == [True, True]
    traces = Traces()
    async with traces.engine() as engine:
        await engine.generate("hello", SHORT)
        await engine.chat(messages, SHORT)
        await engine.embed("hello")
    for span in traces.requests:
        assert "gen_ai.request.stream" not in span.attributes
        assert "gen_ai.response.time_to_first_chunk" not in span.attributes


@pytest.mark.parametrize(
    ("form", "output_type"),
    [
        (None, None),
        (StructuredOutputsParams(json_object=True), "json"),
        (StructuredOutputsParams(json={"type": "object"}), "json"),
        (StructuredOutputsParams(regex="[a-z]+"), "text"),
    ],
)
async def test_the_form_of_an_output_is_told_where_it_is_given(
    form: StructuredOutputsParams | None, output_type: str | None
) -> None:
    traces = Traces()
    async with traces.engine() as engine:
        await engine.generate("hello", SamplingParams(max_tokens=3, structured_outputs=form))
    assert traces.requests[0].attributes.get("gen_ai.output.type") == output_type


async def test_several_choices_have_a_span_each() -> None:
    traces = Traces()
    async with traces.engine(step_seconds=0.001) as engine:
        await engine.generate("hello", SamplingParams(n=3, max_tokens=9), request_id="r")
    root = traces.request("r")
    nodes = traces.tree(root)
    assert len(nodes) == 1 + 2 + 3 * 4
    assert root.attributes["gen_ai.request.choice.count"] == 3
    assert root.attributes["gen_ai.usage.output_tokens"] == 27
    choices = [traces.below(root)[f"choice {index}"] for index in range(3)]
    assert [set(traces.below(choice)) for choice in choices] == [{"queue", "prefill", "decode"}] * 3


async def test_embeddings_end_with_their_prefill() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        await engine.embed("hello")
    (root,) = traces.requests
    assert root.name == "embeddings scripted"
    assert root.attributes["gen_ai.usage.output_tokens"] == 0
    assert [node.name for node in traces.tree(root)][-2:] == ["prefill", "embeddings scripted"]


async def test_a_prompt_that_is_only_scored_has_no_decode() -> None:
    traces = Traces()
    async with traces.engine() as engine:
        await engine.generate("hello", SamplingParams(max_tokens=0, prompt_logprobs=1), request_id="r")
    assert "decode" not in [node.name for node in traces.tree(traces.request("r"))]


async def test_constraints_that_take_longest_have_a_span() -> None:
    traces = Traces()
    params = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(regex="[a-z]{1,5}"))
    async with traces.engine() as engine:
        await engine.generate("hello", params, request_id="r")
    root = traces.request("r")
    assert root.attributes["limelight.request.constrained"] is True
    assert "constraints" in [node.name for node in traces.tree(root)]


async def test_clocks_agree_however_often_a_request_is_preempted() -> None:
    traces = Traces()
    async with traces.engine(num_pages=12, step_seconds=0.001) as engine, anyio.create_task_group() as group:
        for number in range(4):
            params = SamplingParams(max_tokens=90, seed=number)
            group.start_soon(lambda number=number, params=params: engine.generate(f"{number}" * 40, params))
    preempted = [span for span in traces.requests if span.attributes["limelight.num_preemptions"]]
    assert preempted
    for root in traces.requests:
        traces.tree(root)
        names = [event.name for event in traces.below(root)["decode"].events]
        assert (names[0], names[-1]) == ("first token", "last token")
        assert names.count("preempted") == root.attributes["limelight.num_preemptions"]
        assert names.count("resumed") == names.count("preempted")


async def test_the_older_names_are_there_for_those_who_ask() -> None:
    traces = Traces()
    async with traces.engine(trace_vllm_attributes=True) as engine:
        await engine.generate("hello", SHORT, request_id="r")
    attributes = traces.request("r").attributes
    assert attributes["gen_ai.request.id"] == "r"
    assert attributes["gen_ai.request.n"] == 1
    assert attributes["gen_ai.usage.prompt_tokens"] == attributes["gen_ai.usage.input_tokens"]
    assert attributes["gen_ai.usage.completion_tokens"] == 5
    parts = [attributes[f"gen_ai.latency.time_in_{part}"] for part in ("model_prefill", "model_decode")]
    assert attributes["gen_ai.latency.time_in_model_inference"] == pytest.approx(sum(parts))
    assert attributes["gen_ai.latency.e2e"] >= sum(parts)


async def test_content_is_there_for_those_who_ask() -> None:
    traces = Traces()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    async with traces.engine("yes", trace_content=True) as engine:
        await engine.chat(messages, request_id="chat", tools=tools)
        await engine.generate("hello", request_id="text")
        await engine.generate([1, 2, 3], request_id="tokens")
    attributes = traces.request("chat").attributes
    assert msgspec.json.decode(attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": "{}"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "42"}]},
    ]
    assert msgspec.json.decode(attributes["gen_ai.tool.definitions"]) == tools
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "yes"}], "finish_reason": "stop"}]
    assert msgspec.json.decode(attributes["gen_ai.output.messages"]) == answer
    text = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
    assert msgspec.json.decode(traces.request("text").attributes["gen_ai.input.messages"]) == text
    assert "gen_ai.input.messages" not in traces.request("tokens").attributes


async def test_what_an_error_quotes_is_there_for_those_who_ask() -> None:
    told = []
    for wanted in (False, True):
        traces = Traces()
        async with traces.engine(trace_content=wanted) as engine:
            with pytest.raises(LimelightError, match="secret"):
                await engine.generate("hello", SHORT, adapter="secret", request_id="r")
        told.append(traces.request("r").status.description)
    assert "secret" not in told[0]
    assert "secret" in told[1]


# ---- endings


async def leave(engine: Engine) -> None:
    async with engine.stream("hello", ENDLESS, request_id="r") as stream:
        await anext(stream)


async def leave_at_once(engine: Engine) -> None:
    async with engine.stream("hello", ENDLESS, request_id="r"):
        pass


async def abort(engine: Engine) -> None:
    async with engine.stream("hello", ENDLESS, request_id="r") as stream:
        await anext(stream)
        stream.abort(RequestCancelled("the operator wanted it"))
        with pytest.raises(RequestCancelled):
            await stream.result()


async def expire(engine: Engine) -> None:
    async with engine.stream("hello", ENDLESS, request_id="r") as stream:
        stream.abort(RequestExpired("5 seconds are over"))
        with pytest.raises(RequestExpired):
            await stream.result()


async def reject(engine: Engine) -> None:
    async with engine.stream("a", ENDLESS), engine.stream("b", ENDLESS):
        with pytest.raises(Overloaded):
            await engine.generate("hello", SHORT, request_id="r")


async def refuse_model(engine: Engine) -> None:
    with pytest.raises(LimelightError):
        await engine.generate("hello", SHORT, request_id="r", adapter="unknown")


async def refuse_length(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        await engine.generate("x" * 5000, SHORT, request_id="r")


async def refuse_pages(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        await engine.generate("x" * 600, SHORT, request_id="r")


async def fail(engine: Engine) -> None:
    with pytest.raises(LimelightError):
        await engine.generate("fail", SHORT, request_id="r")


async def complete(engine: Engine) -> None:
    await engine.generate("hello", SHORT, request_id="r")


UNSET, ERROR = StatusCode.UNSET, StatusCode.ERROR


@pytest.mark.parametrize(
    ("act", "status", "ending", "kind", "description"),
    [
        (complete, UNSET, "completed", None, None),
        (leave, UNSET, "aborted", "request_cancelled", None),
        (leave_at_once, UNSET, "aborted", "request_cancelled", None),
        (abort, UNSET, "aborted", "request_cancelled", None),
        (expire, ERROR, "expired", "request_expired", "5 seconds are over"),
        (reject, ERROR, "rejected", "overloaded", "2 requests are live"),
        (refuse_model, ERROR, "invalid", "model_not_found", "model_not_found"),
        (refuse_length, ERROR, "invalid", "context_length_exceeded", "5"),
        (refuse_pages, ERROR, "invalid", "context_length_exceeded", "601"),
        (fail, ERROR, "failed", "step_failed", "forward pass"),
    ],
)
async def test_each_ending_has_its_status_and_its_reason(
    act: Callable[[Engine], Awaitable[None]],
    status: StatusCode,
    ending: str,
    kind: str | None,
    description: str | None,
) -> None:
    traces = Traces()

    def before_step(step: object) -> None:
        if act is fail:
            raise RuntimeError("broken")

    async with traces.engine(num_pages=32, max_num_requests=2, before_step=before_step, step_seconds=0.001) as engine:
        await act(engine)
        await engine.drain(5)
    span = traces.request("r")
    assert span.status.status_code is status
    assert (span.status.description is None) if description is None else (description in span.status.description)
    assert span.attributes["limelight.ending"] == ending
    assert span.attributes.get("error.type") == kind
    if act is abort:
        assert span.attributes["limelight.ending_reason"] == "the operator wanted it"
    nodes = traces.tree(span)
    assert len(nodes) >= 2


async def test_a_call_to_an_engine_that_does_not_run_has_a_span_too() -> None:
    traces = Traces()
    engine = traces.engine()
    with pytest.raises(LimelightError):
        await engine.generate("hello", SHORT)
    (span,) = traces.requests
    assert span.status.status_code is ERROR
    assert span.attributes["limelight.ending"] == "rejected"
    assert span.attributes["error.type"] == "engine_not_running"


async def test_stopping_the_engine_ends_the_spans_of_all_requests() -> None:
    traces = Traces()
    engine = traces.engine(step_seconds=0.001)
    await engine.start()
    async with engine.stream("hello", ENDLESS) as stream:
        await anext(stream)
        await engine.stop()
    (span,) = traces.requests
    assert span.attributes["limelight.ending"] == "failed"
    assert span.attributes["error.type"] == "engine_not_running"
    traces.tree(span)


@pytest.mark.parametrize("leaves", [True, False])
async def test_who_leaves_before_the_engine_stops_is_aborted_and_who_stays_fails_wherever_one_looks(
    leaves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    traces = Traces()
    engine = traces.engine(step_seconds=0.001)
    await engine.start()
    with caplog.at_level(logging.INFO, logger="limelight.requests"):
        async with contextlib.AsyncExitStack() as streams:
            for number in range(12):
                if number < 9:  # the last ones have not even begun
                    await anyio.sleep(0.001)
                await streams.enter_async_context(engine.stream(f"hello {number}", ENDLESS))
            if leaves:
                await streams.aclose()  # does not suspend: the stop comes in the same turn of the loop
            await engine.stop()
    ending, code = ("aborted", "request_cancelled") if leaves else ("failed", "engine_not_running")
    assert [span.attributes["limelight.ending"] for span in traces.requests] == [ending] * 12
    assert {span.attributes["error.type"] for span in traces.requests} == {code}
    assert {span.status.status_code for span in traces.requests} == {UNSET if leaves else ERROR}
    assert engine.telemetry.counters.requests.values == {("scripted", ending, code): 12}
    assert {(view.ending, view.error_code) for view in engine.requests(recent=20)} == {(ending, code)}
    lines = [record.getMessage() for record in caplog.records if record.name == "limelight.requests"]
    assert len(lines) == 12
    assert all(f"ending={ending}" in line and code in line for line in lines)


# ---- hosts


async def test_samplers_see_the_model_and_the_operation() -> None:
    seen: list[dict[str, object]] = []

    class Watching(StaticSampler):
        def should_sample(self, *args: object, **fields: object) -> SamplingResult:
            seen.append(dict(fields.get("attributes") or args[4]))
            return super().should_sample(*args, **fields)

    traces = Traces(Watching(ALWAYS_OFF._decision))
    async with traces.engine() as engine:
        await engine.generate("hello", SHORT)
    assert seen == [
        {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "limelight",
            "gen_ai.request.model": "scripted",
        }
    ]


async def test_what_is_not_recorded_costs_no_spans_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nobody looks")

    monkeypatch.setattr("limelight.telemetry.tracing.each_span", never)
    traces = Traces(ParentBased(ALWAYS_OFF))
    async with traces.engine() as engine:
        await engine.generate("hello", SHORT)
    async with Engine("scripted", loader=scripted_model()) as engine:
        await engine.generate("hello", SHORT)


class Broken:
    """A tracer, provider and span that raise in everything that is asked of them, from the given call on."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.calls = 0

    def get_tracer(self, *args: object, **fields: object) -> "Broken":
        return self

    def _call(self) -> None:
        self.calls += 1
        if self.calls >= self.first:
            raise RuntimeError("a host's mistake")

    def start_span(self, *args: object, **fields: object) -> "Broken":
        self._call()
        return self

    def is_recording(self) -> bool:
        self._call()
        return True

    def get_span_context(self) -> trace.SpanContext:
        self._call()
        return trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))

    def set_attributes(self, attributes: object) -> None:
        self._call()

    def add_event(self, *args: object) -> None:
        self._call()

    def end(self, **fields: object) -> None:
        self._call()


@pytest.mark.parametrize("first", [1, 2, 3, 4, 5, 8, 13, 21])
async def test_a_broken_tracer_harms_nobody_and_is_told_once(first: int, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine("scripted", loader=scripted_model(), tracer_provider=Broken(first), trace_step_interval=1)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        async with engine:
            for _ in range(3):
                generation = await engine.generate("hello", SHORT)
                assert len(generation.outputs[0].token_ids) == 5
            assert not engine.telemetry.live
    assert len([record for record in caplog.records if record.name.startswith("limelight")]) == 1


async def test_content_is_not_kept_beyond_the_end() -> None:
    traces = Traces()
    async with traces.engine(trace_content=True) as engine:
        await engine.generate("secret", SHORT)
        await engine.drain(5)
        (timeline,) = engine.telemetry.recent
    assert not timeline.span.is_recording()
    assert timeline.span.get_span_context() == traces.requests[0].context
    assert timeline.span_ids["request"] == trace.format_span_id(root_id(traces.requests[0]))
