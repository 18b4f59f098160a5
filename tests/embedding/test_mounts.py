"""Mounted into FastAPI, Starlette and Litestar: streams, disconnects, lifespans, traces, addresses under a sub-path."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from limelight import Engine, EngineConfig
from limelight.engine import EngineState
from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine, scripted_model
from tests.embedding.hosts import HOSTS, Host
from tests.http.test_disconnect import until
from tests.http.test_sse import Barrier
from tests.http.wire import CHAT, chat_body, client_of, error_of, frames

pytestmark = pytest.mark.anyio
each_host = pytest.mark.parametrize("make", HOSTS)

STREAM = chat_body(stream=True)
LLM = f"/llm{CHAT}"
TRACE = 0x0AF7651916CD43DD8448EB211C80319C


@each_host
async def test_tokens_arrive_before_the_answer_is_complete(make: Host) -> None:
    barrier = Barrier(passing=2)
    engine = scripted_engine("abcd", before_step=barrier)
    async with client_of(make(engine)) as client, client.stream("POST", LLM, json=STREAM) as response:
        received = b""
        async for data in response.aiter_raw():
            received += data
            if b'"content":"b"' in received:
                barrier.open()  # without it the third token never comes
    assert len(frames(received)) == 6


@each_host
async def test_a_client_that_leaves_ends_its_request_and_the_host_goes_on(make: Host) -> None:
    engine = scripted_engine("x" * 1500, step_seconds=0.002)
    async with client_of(make(engine)) as client:
        async with client.stream("POST", LLM, json=STREAM) as response:
            await anext(response.aiter_raw())
            assert engine.statistics().num_requests == 1
        await until(lambda: engine.statistics().num_requests == 0)
        await until(lambda: engine.statistics().num_free_pages == engine.statistics().num_pages)
        assert (await client.post(LLM, json=chat_body(max_tokens=2))).status_code == 200


@each_host
async def test_the_host_starts_the_engine_uses_it_and_ends_it(make: Host) -> None:
    engine = scripted_engine("hello")
    async with client_of(make(engine)) as client:
        assert engine.state is EngineState.READY
        assert "hello" in (await client.get("/own")).text
        assert (await client.get("/llm/readyz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 404
    assert engine.state is EngineState.STOPPED


@each_host
async def test_pages_and_their_links_stay_below_the_mount(make: Host) -> None:
    async with client_of(make(scripted_engine("hello"))) as client:
        for path in ("/llm", "/llm/", "/llm/docs", "/llm/ui/requests"):
            page = await client.get(path, follow_redirects=True)
            assert page.status_code == 200, path
            links = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
            assert len(links) > 2
            for link in links:
                address = urljoin(str(page.url), link)
                assert "/llm/" in address, link
                assert (await client.get(address)).status_code == 200, address
        document = (await client.get("/llm/openapi.json")).json()
        assert document["openapi"].startswith("3.1")


@each_host
async def test_the_servers_own_root_path_and_a_mount_go_together(make: Host) -> None:
    """Behind a proxy that strips a prefix of its own."""
    async with client_of(make(scripted_engine("hello")), root_path="/public") as client:
        answer = await client.post(LLM, json=chat_body())
        assert answer.json()["choices"][0]["message"]["content"] == "hello"


@each_host
async def test_errors_are_those_of_the_api_and_not_of_the_host(make: Host) -> None:
    async with client_of(make(scripted_engine("hello"))) as client:
        assert error_of(await client.post(LLM, json=chat_body(max_tokens=-1)), 400)["param"] == "max_tokens"
        error_of(await client.get("/llm/v1/nothing"), 404)
        error_of(await client.get(LLM), 405)


@each_host
async def test_the_hosts_span_is_the_parent(make: Host) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = Engine(loader=scripted_model("hello"), tracer_provider=provider)
    host = OpenTelemetryMiddleware(make(engine), tracer_provider=provider, exclude_spans=["send", "receive"])
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with client_of(host) as client:
        await client.post(LLM, json=chat_body(), headers={"traceparent": traceparent})
    spans = [span for span in exporter.get_finished_spans() if span.context and span.context.trace_id == TRACE]
    ids = {span.context.span_id: span for span in spans if span.context}
    engines = next(span for span in spans if span.name.startswith("chat "))
    above = []
    span: Any = engines
    while span is not None and span.parent is not None:
        above.append(span.name)
        last, span = span.parent.span_id, ids.get(span.parent.span_id)
    assert last == 0xB7AD6B7169203331
    assert above[0] == "chat scripted"
    assert above[1].endswith(CHAT), "of the server inside, with the mount's path where the host tells it"
    assert len(above) == 3, "the host's, Limelight's, and the engine's"


async def test_an_application_whose_lifespan_nobody_runs_says_what_to_do() -> None:
    """Two owners: the host runs its own lifespan alone, so the engine of the mounted application never starts."""
    host = FastAPI()
    host.mount("/llm", create_app(EngineConfig()))
    async with client_of(host) as client:
        error = error_of(await client.post(LLM, json=chat_body()), 503)
        assert "the host must" in error["message"]


async def test_the_lifespan_of_a_mounted_application_can_be_entered_by_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("limelight.engine._default_loader", scripted_model("hello"))
    mounted = create_app(EngineConfig(), settings=HttpSettings(api_keys={"me": "secret"}))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with mounted.lifespan():
            yield

    host = FastAPI(lifespan=lifespan)
    host.mount("/llm", mounted)
    async with client_of(host) as client:
        error_of(await client.post(LLM, json=chat_body()), 401)
        answer: httpx.Response = await client.post(LLM, json=chat_body(), headers={"authorization": "Bearer secret"})
        assert answer.json()["choices"][0]["message"]["content"] == "hello"
