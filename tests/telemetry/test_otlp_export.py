"""Everything once more as it arrives at a real OTLP/HTTP receiver, through the SDK's own exporter and batches."""

import anyio
import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from limelight.engine import Engine
from limelight.errors import StepFailure
from limelight.generation import GenerationRequest, SamplingParams, TextPrompt
from limelight.testing import Turn, babble, scripted_model
from tests.telemetry.otlp_receiver import OtlpReceiver, attributes_of, otlp_receiver
from tests.telemetry.traced import remote_parent
from tests.telemetry.trees import Node, check_tree

pytestmark = pytest.mark.anyio

PARAMS = SamplingParams(temperature=0, max_tokens=40)


def provider_for(receiver: OtlpReceiver) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=receiver.traces_url), max_export_batch_size=64)
    )
    return provider


def received(receiver: OtlpReceiver) -> dict[str, Span]:
    """Spans of requests by the request's id."""
    found = [(attributes_of(span.attributes), span) for span in receiver.spans]
    requests = [(attributes, span) for attributes, span in found if "gen_ai.operation.name" in attributes]
    assert len({str(attributes["limelight.request.id"]) for attributes, _ in requests}) == len(requests)
    return {str(attributes["limelight.request.id"]): span for attributes, span in requests}


def check_received_tree(receiver: OtlpReceiver, root: Span) -> list[Node]:
    nodes = [
        Node(
            span.span_id,
            span.parent_span_id,
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            attributes_of(span.attributes),
            [(event.name, event.time_unix_nano) for event in span.events],
        )
        for span in receiver.spans
        if span.trace_id == root.trace_id
    ]
    nodes = [node for node in nodes if node.name != "host"]
    check_tree(nodes, next(node for node in nodes if node.id == root.span_id))
    return nodes


async def test_concurrent_requests_arrive_each_under_its_own_parent_with_their_parts() -> None:
    with otlp_receiver() as receiver:
        provider = provider_for(receiver)
        loader = scripted_model(step_seconds=0.001, num_pages=40)

        async def call(number: int) -> None:
            request = GenerationRequest(
                request_id=str(number),
                prompt=TextPrompt(f"{number} " * 10),
                sampling=PARAMS,
                trace_context=remote_parent(number),
            )
            async with engine.open(request) as stream:
                await stream.result()

        engine = Engine("scripted", loader=loader, tracer_provider=provider)
        async with engine, anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(call, number)
        await anyio.to_thread.run_sync(provider.shutdown)
        roots = received(receiver)
        assert set(roots) == {str(number) for number in range(20)}
        preempted = 0
        for number in range(20):
            root = roots[str(number)]
            assert int.from_bytes(root.trace_id) == 0xABC000 + number
            assert int.from_bytes(root.parent_span_id) == 0xDEF000 + number
            nodes = check_received_tree(receiver, root)
            assert {node.name for node in nodes} >= {"admission", "tokenize", "queue", "prefill", "decode"}
            attributes = attributes_of(root.attributes)
            assert attributes["gen_ai.request.temperature"] == 0
            assert attributes["gen_ai.usage.output_tokens"] == 40
            preempted += int(attributes["limelight.num_preemptions"])
        assert preempted
        linked = {link.span_id for span in receiver.spans if span.name == "step" for link in span.links}
        assert linked
        assert linked <= {root.span_id for root in roots.values()}


def fail_on_request(turn: Turn) -> int:
    """A script that breaks its step where the prompt asks for it."""
    if bytes(turn.prompt[-4:]) == b"fail":
        raise RuntimeError("broken")
    return babble(turn)


async def test_each_ending_arrives_with_its_status() -> None:
    with otlp_receiver() as receiver:
        provider = provider_for(receiver)
        loader = scripted_model(fail_on_request)
        async with Engine("scripted", loader=loader, tracer_provider=provider) as engine:
            with provider.get_tracer("host").start_as_current_span("host", context=Context()) as host:
                await engine.generate("hello", PARAMS, request_id="completed")
            async with engine.stream("hello", SamplingParams(max_tokens=None), request_id="aborted") as stream:
                await anext(stream)
            with pytest.raises(StepFailure):
                await engine.generate("fail", PARAMS, request_id="failed")
            await engine.drain(5)
        await anyio.to_thread.run_sync(provider.shutdown)
        roots = received(receiver)
        codes = {request_id: root.status.code for request_id, root in roots.items()}
        assert codes == {
            "completed": Status.STATUS_CODE_UNSET,
            "aborted": Status.STATUS_CODE_UNSET,
            "failed": Status.STATUS_CODE_ERROR,
        }
        assert roots["completed"].parent_span_id == host.get_span_context().span_id.to_bytes(8)
        assert attributes_of(roots["aborted"].attributes)["error.type"] == "request_cancelled"
        assert "forward pass" in roots["failed"].status.message
        for root in roots.values():
            check_received_tree(receiver, root)


async def test_a_value_that_is_hard_to_encode_loses_no_batch() -> None:
    with otlp_receiver() as receiver:
        provider = provider_for(receiver)
        async with Engine("scripted", loader=scripted_model(), tracer_provider=provider) as engine:
            await engine.generate("a", PARAMS, priority=10**30, request_id="big")
            await engine.generate("b", PARAMS, request_id="beside it")
        await anyio.to_thread.run_sync(provider.shutdown)
        assert set(received(receiver)) == {"big", "beside it"}
