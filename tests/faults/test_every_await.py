"""A request is cancelled at every `await` of its way, one after the other, until it comes to its end: each time all
pages, seats, subscribers and tasks are back, and its span has ended, once."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from limelight import Engine, SamplingParams, StructuredOutputsParams
from limelight.generation import TextPrompt
from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine
from tests.faults.suspensions import Interference, Suspending, cancel_now, cancel_with_result
from tests.faults.test_every_message import nothing_left, until
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body

pytestmark = pytest.mark.anyio

FEW = SamplingParams(max_tokens=4, seed=1)
LONG = SamplingParams(max_tokens=200, seed=1)
FORM = SamplingParams(max_tokens=6, seed=1, structured_outputs=StructuredOutputsParams(regex="[a-c]{4}"))
WAYS = [cancel_now, cancel_with_result]
MOST = 400


@pytest.fixture(autouse=True)
def nothing_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def cancelled_at_each(
    work: Callable[[], Awaitable[Any]], interfere: Interference, check: Callable[[], Awaitable[None]]
) -> int:
    """Runs `work` until it is not reached by its cancellation any more; returns at how many suspensions it was.

    `check` is called after each run.
    """
    for number in range(1, MOST):
        suspending = Suspending(work(), number, interfere)

        async def run(suspending: Suspending = suspending) -> None:
            await suspending

        task = asyncio.create_task(run())
        await asyncio.wait([task])
        await check()
        if not suspending.has_interfered:
            return number - 1
        assert task.cancelled() or (interfere not in WAYS and task.exception() is None)
    raise AssertionError(f"it has more than {MOST} suspensions")


class OpenSpans(SpanProcessor):
    """Counts the spans that have begun and not ended, and those that have ended."""

    def __init__(self) -> None:
        self.num_open = 0
        self.num_ended = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.num_open += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.num_open -= 1
        self.num_ended += 1


class Everything:
    """What must be back after each request: of an engine, and of an application over it."""

    def __init__(self, engine: Engine, spans: OpenSpans) -> None:
        self._engine = engine
        self._spans = spans
        self._tasks = asyncio.all_tasks()

    async def check(self) -> None:
        """Wait until it is; never ends otherwise."""
        engine = self._engine
        await nothing_left(engine)
        parts = engine._system.parts
        tokenizer = parts.tokenizer
        await until(lambda: not parts.background)
        await until(lambda: not tokenizer._pending)
        await engine.telemetry.tracing.owed.wait_until_made()
        await until(lambda: asyncio.all_tasks() - self._tasks == {asyncio.current_task()} - self._tasks)
        assert engine.state.value == "ready"
        assert not engine.telemetry.live
        assert self._spans.num_open == 0
        await until(lambda: [adapter.num_requests for adapter in parts.adapters._by_id.values()] in ([], [0]))


def traced_engine(spans: OpenSpans, **options: Any) -> Engine:
    provider = TracerProvider()
    provider.add_span_processor(spans)
    return scripted_engine(tracer_provider=provider, trace_step_interval=0, **options)


async def streamed(engine: Engine) -> None:
    async with engine.stream("a stream", FEW) as stream:
        async for _ in stream:
            pass


async def left(engine: Engine) -> None:
    async with engine.stream_chat([{"role": "user", "content": "left"}], LONG) as stream:
        await anext(stream)


async def loaded_and_unloaded(engine: Engine) -> None:
    await engine.load_adapter("other", engine.adapters[0].path)
    await engine.unload_adapter("other")


VERBS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "generate": lambda engine: engine.generate("two of them", msgspec.structs.replace(FEW, n=2)),
    "generate with an adapter": lambda engine: engine.generate("adapted", FEW, adapter="one"),
    "chat": lambda engine: engine.chat([{"role": "user", "content": "hi"}], FORM),
    "embed": lambda engine: engine.embed("a text"),
    "stream": streamed,
    "stream that is left": left,
    "tokenize": lambda engine: engine.tokenize(TextPrompt("a text")),
    "detokenize": lambda engine: engine.detokenize([65, 66]),
    "adapter": loaded_and_unloaded,
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_cancelled_at_any_await_leaves_nothing(verb: str, tmp_path: Path) -> None:
    spans = OpenSpans()
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    async with traced_engine(spans, adapters={"one": str(tmp_path)}) as engine:
        everything = Everything(engine, spans)
        for interfere in WAYS:
            assert await cancelled_at_each(lambda: VERBS[verb](engine), interfere, everything.check) >= 1
        assert (await engine.generate("still here", FEW)).usage.completion_tokens == 4


class Client:
    """The server's side of one exchange: every call waits for the loop.

    Attributes:
        left: set when its client goes away; `receive` says so.
        is_cut: whether `send` says so, and `receive` does not.
    """

    def __init__(self, path: str, body: dict[str, Any], headers: Mapping[str, str], padding: int = 0) -> None:
        fields = {"host": "x", "content-type": "application/json", **headers}
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        content = json.dumps(body).encode() + b" " * padding
        self._parts = [content[:20], content[20:]]
        self.left = asyncio.Event()
        self.is_cut = False
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        await asyncio.sleep(0)
        if not self._parts:
            await self.left.wait()
            return {"type": "http.disconnect"}
        part = self._parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)
        if self.is_cut:
            raise ConnectionResetError("the client has gone")
        self.sent.append(message)


def asked(
    path: str, body: dict[str, Any], headers: Mapping[str, str] = MappingProxyType({}), padding: int = 0
) -> Callable[[], Client]:
    return lambda: Client(path, {"max_tokens": 3, **body}, headers, padding)


SEVERAL = {"prompt": ["one", "two"], "n": 2}
RESPONSE = {"model": "scripted", "input": "hi", "max_tokens": None, "max_output_tokens": 3}
RESUMABLE = {"x-limelight-resumable": "1", "x-limelight-grace": "0"}
ROUTES = {
    "chat": asked(CHAT, chat_body()),
    "chat stream": asked(CHAT, chat_body(stream=True)),
    "chat stream with progress": asked(CHAT, chat_body(stream=True), {"x-limelight-progress": "1"}),
    "chat stream, resumable": asked(CHAT, chat_body(stream=True), RESUMABLE),
    "long body": asked(CHAT, chat_body(), padding=70_000),
    "completions": asked(COMPLETIONS, completion_body(**SEVERAL)),
    "completions stream": asked(COMPLETIONS, completion_body(stream=True, **SEVERAL)),
    "completions stream, resumable": asked(COMPLETIONS, completion_body(stream=True, **SEVERAL), RESUMABLE),
    "response": asked("/v1/responses", RESPONSE),
    "response stream": asked("/v1/responses", {**RESPONSE, "stream": True}),
    "response in the background": asked("/v1/responses", {**RESPONSE, "background": True}),
    "response in the background, stream": asked("/v1/responses", {**RESPONSE, "background": True, "stream": True}),
    "messages": asked("/v1/messages", chat_body()),
    "messages stream": asked("/v1/messages", chat_body(stream=True)),
    "embeddings": asked("/v1/embeddings", {"model": "scripted", "input": ["one", "two"], "max_tokens": None}),
    "tokenize": asked("/tokenize", {"prompt": "one", "max_tokens": None}),
}


@pytest.mark.parametrize("route", ROUTES)
async def test_an_exchange_cut_at_any_await_leaves_nothing(route: str) -> None:
    spans = OpenSpans()
    engine = traced_engine(spans)
    app = create_app(engine, settings=HttpSettings(keep_alive_seconds=60))
    clients: list[Client] = []

    async def exchange() -> None:
        client = ROUTES[route]()
        clients.append(client)
        await app(client.scope, client.receive, client.send)

    def leave(_task: object, _waits_for: object) -> None:
        clients[-1].left.set()

    def cut(_task: object, _waits_for: object) -> None:
        clients[-1].is_cut = True

    async with engine:
        everything = Everything(engine, spans)
        for interfere in (*WAYS, leave, cut):
            num_reached = await cancelled_at_each(exchange, interfere, everything.check)
            last = clients[-1]
            assert num_reached >= len(last.sent)
            assert (last.sent[0]["status"], last.sent[-1]["more_body"]) == (200, False)


LIFE: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "start": lambda engine: engine.start(),
    "drain": lambda engine: engine.drain(60),
    "stop": lambda engine: engine.stop(),
}


@pytest.mark.parametrize("interfere", WAYS)
@pytest.mark.parametrize("part", LIFE)
async def test_a_part_of_an_engines_life_cancelled_at_any_await_leaves_nothing(
    part: str, interfere: Interference
) -> None:
    engine = scripted_engine()

    async def next_engine() -> None:
        nonlocal engine
        await engine.stop()
        await until(lambda: engine.state.value == "stopped")
        assert engine.failure is None
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("limelight")] == []
        engine = scripted_engine()
        if part != "start":
            await engine.start()
            engine.run_in_background(partial(asyncio.sleep, 0), "what a drain waits for")

    await next_engine()
    assert await cancelled_at_each(lambda: LIFE[part](engine), interfere, next_engine) >= 1
    await engine.stop()
