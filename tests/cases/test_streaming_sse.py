"""Streams as strict readers, proxies and host applications see them.

The chunks of tool calls are in the cases of tool calling. The framing of one request after the other is in the HTTP
tests; here are the default model's streams, byte by byte, and what lies
between a server and its client.

Cases: B004, B005, B006, B007, B008, B010, B011, B012, B013, B015.
"""

import asyncio
import json
from contextlib import asynccontextmanager

import anyio
import httpx
import openai
import pytest
from litestar import Litestar, asgi
from litestar.config.compression import CompressionConfig

from limelight.http import HttpSettings, create_app
from limelight.http.sse import KEEP_ALIVE
from limelight.testing import scripted_engine
from tests.cases.small_engines import MODEL, Gate, chat, completion, default_engine, idle, model_client, until
from tests.http.wire import (
    CHAT,
    COMPLETIONS,
    by_choice,
    chat_body,
    client_of,
    completion_body,
    error_of,
    frames,
    running_server,
    serving,
    streamed,
)

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize(("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)], ids=["chat", "completion"])


def default_model_test(function):
    return pytest.mark.model(pytest.mark.usefixtures("default_model")(function))


def text_of(choice):
    return choice["delta"].get("content", "") if "delta" in choice else choice["text"]


def texts_of(answer):
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in answer["choices"]]


# ---- on the wire


@default_model_test
@BOTH
async def test_the_bytes_of_a_stream_suit_the_strictest_reader(path, body):
    """HTTP/1.1 by hand: chunked, no length, unbuffered, and events that end with two line feeds and nothing else."""
    async with default_engine() as engine, running_server(create_app(engine)) as port:
        content = json.dumps(body(stream=True, max_tokens=3, temperature=0)).encode()
        async with await anyio.connect_tcp("127.0.0.1", port) as connection:
            await connection.send(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
                f"Content-Type: application/json\r\n\r\n".encode()
                + content
            )
            received = b"".join([part async for part in connection])
    head, _, chunked = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert status == "http/1.1 200 ok"
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["transfer-encoding"] == "chunked"
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "no-cache"
    assert not {"content-length", "content-encoding"} & headers.keys()
    stream = b""
    while chunked:
        size, _, chunked = chunked.partition(b"\r\n")
        stream += chunked[: int(size, 16)]
        chunked = chunked[int(size, 16) + 2 :]
    assert b"\r" not in stream
    *events, done, nothing = stream.split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    assert all(event.startswith(b"data: {") and b"\n" not in event for event in events)
    assert [json.loads(event[6:])["model"] for event in events] == [MODEL] * len(events)


@default_model_test
@BOTH
@pytest.mark.parametrize(
    "fields", [{"n": 1}, {"n": 3}, {"n": 2, "stop": ["e", " "]}], ids=["one", "three", "with stop strings"]
)
async def test_each_choice_streams_what_the_whole_answer_says_and_ends_with_an_empty_chunk(path, body, fields):
    async with default_engine() as engine, model_client(engine) as client:
        request = body("Tell me a story", temperature=1, seed=5, max_tokens=6, ignore_eos=True, **fields)
        whole = (await client.post(path, json=request)).json()
        chunks = streamed(await client.post(path, json=request | {"stream": True}))
    choices = by_choice(chunks)
    assert sorted(choices) == list(range(fields["n"]))
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    for index, parts in choices.items():
        assert all("finish_reason" in part for part in parts)
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == whole["choices"][index]["finish_reason"]
        assert text_of(parts[-1]) == ""
        assert "".join(map(text_of, parts)) == texts_of(whole)[index]
        if path == CHAT:
            assert ["role" in part["delta"] for part in parts] == [True] + [False] * (len(parts) - 1)
            assert parts[-1]["delta"] == {}
    if "stop" in fields:
        assert "stop" in [choice["finish_reason"] for choice in whole["choices"]]


@default_model_test
async def test_the_official_client_merges_the_chunks_of_several_choices_into_the_whole_messages():
    async with default_engine() as engine, model_client(engine) as client:
        request = chat("Tell me a story", temperature=1, seed=6, max_tokens=6, n=2)
        whole = (await client.post(CHAT, json=request)).json()
        api = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="-", http_client=httpx.AsyncClient())
        async with api, api.chat.completions.stream(**request) as stream:
            async for _ in stream:
                pass
            merged = stream.current_completion_snapshot
    assert [choice.message.role for choice in merged.choices] == ["assistant"] * 2
    assert [choice.message.content for choice in merged.choices] == texts_of(whole)


# ---- what fails


@default_model_test
async def test_a_fault_after_the_third_token_ends_its_stream_with_one_error_and_no_other_one():
    def fail(step):
        if len(seen) == 3 and step.chunks[0].num_tokens == 1:
            seen.append("failed")
            raise RuntimeError("secret detail of the forward pass")
        seen.append(step.number)

    seen = []
    async with default_engine(max_num_seqs=1, before_step=fail) as engine, model_client(engine) as client:
        results = {}

        async def ask(name):
            results[name] = await client.post(
                CHAT, json=chat(stream=True, max_tokens=5, temperature=0, ignore_eos=True)
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "broken")
            await until(lambda: engine.statistics().num_running == 1)
            tasks.start_soon(ask, "queued")
        *chunks, error = streamed(results["broken"])
        assert "".join(text_of(choice) for choice in by_choice(chunks)[0])
        assert error.keys() == {"error"}
        assert {"message", "type", "param", "code"} <= error["error"].keys()
        for leak in (b"secret", b"RuntimeError", b"Traceback"):
            assert leak not in results["broken"].content
        assert by_choice(streamed(results["queued"]))[0][-1]["finish_reason"] == "length"
        assert idle(engine)
        api = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="-", http_client=httpx.AsyncClient())
        seen.clear()
        async with api:
            stream = await api.chat.completions.create(**chat(max_tokens=9, temperature=0), stream=True)
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass
        assert idle(engine)


@BOTH
async def test_an_invalid_value_is_the_same_400_streamed_or_not(path, body):
    bad = [{"n": 0}, {"max_tokens": -1}, {"temperature": -1}, {"top_p": 0}, {"stop": [""]}, {"logit_bias": {"5": 101}}]
    bad.append({"messages": []} if path == CHAT else {"prompt": []})
    async with serving(scripted_engine(served_model_name=MODEL)) as client:
        for fields in bad:
            bodies = []
            for stream in (False, True):
                with anyio.fail_after(60):
                    response = await client.post(path, json=body(stream=stream) | fields)
                bodies.append({**error_of(response, 400), "request_id": None})
            assert bodies[0] == bodies[1]


# ---- what lies between


async def test_a_reader_with_a_64_kib_line_limit_gets_through_the_largest_events():
    script = "".join(chr(0x4E00 + number % 5000) for number in range(700))
    engine = scripted_engine(script, num_pages=20_000, max_model_len=300_000, max_num_batched_tokens=65536)
    requests = [
        (COMPLETIONS, completion_body(prompt="x" * 200_000, echo=True, stream=True, max_tokens=1)),
        (CHAT, chat_body(stream=True, logprobs=True, top_logprobs=20, max_tokens=2000)),
    ]
    async with engine, running_server(create_app(engine)) as port:
        for path, body in requests:
            content = json.dumps(body).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
            writer.write(
                f"POST {path} HTTP/1.0\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
                f"Content-Type: application/json\r\n\r\n".encode()
                + content
            )
            lines = [line async for line in reader]
            writer.close()
            await writer.wait_closed()
            assert b"data: [DONE]\n" in lines
            assert sum(map(len, lines)) > 200_000


async def test_headers_come_before_the_first_token_even_where_a_middleware_waits_for_a_body():
    """A compressing host that does not leave the mount out holds the headers back until it sees a part of the body.

    Then it compresses what the client said it can read: its owner's choice, and still event by event.
    """
    gate = Gate()
    engine = scripted_engine("at once", before_step=gate)
    inner = create_app(engine, settings=HttpSettings(header_wait_seconds=0.01, keep_alive_seconds=None))
    mounted = asgi("/llm", is_mount=True, copy_scope=True)(inner)
    compression = CompressionConfig(backend="gzip", minimum_size=1)
    outer = Litestar([mounted], compression_config=compression, openapi_config=None, logging_config=None)
    headers = {"accept-encoding": "gzip"}
    async with engine, client_of(outer) as client:
        request = client.stream("POST", f"/llm{CHAT}", json=chat_body(stream=True), headers=headers)
        async with request as response:
            assert response.status_code == 200
            assert engine.statistics().num_steps == 0
            gate.open()
            body = await response.aread()
    assert "".join(map(text_of, by_choice(frames(body))[0])) == "at once"


@asynccontextmanager
async def idle_proxy(port, idle_seconds):
    """Port of a proxy that closes a connection on which the server has said nothing for `idle_seconds`."""

    async def handle(client):
        async with client, await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as tasks:

            async def upload():
                async for data in client:
                    await server.send(data)

            tasks.start_soon(upload)
            with anyio.move_on_after(idle_seconds) as patience:
                async for data in server:
                    patience.deadline = anyio.current_time() + idle_seconds
                    await client.send(data)
            tasks.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("keep_alive_seconds", [0.05, None])
async def test_a_long_prefill_outlives_a_proxy_that_closes_idle_connections_unless_pings_are_off(keep_alive_seconds):
    gate = Gate()
    engine = scripted_engine("late", before_step=gate)
    settings = HttpSettings(header_wait_seconds=0.05, keep_alive_seconds=keep_alive_seconds)
    received = b""
    async with (
        engine,
        running_server(create_app(engine, settings=settings)) as port,
        idle_proxy(port, 1.5) as proxy,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy}", trust_env=False) as client,
    ):
        try:
            async with client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
                assert response.status_code == 200
                async for data in response.aiter_raw():
                    received += data
                    if received.count(KEEP_ALIVE) == 45:
                        gate.open()
        except httpx.RemoteProtocolError:
            assert keep_alive_seconds is None, "cut although there were pings"
            assert received == b""
            gate.open()
            await until(lambda: idle(engine))
            return
    assert keep_alive_seconds is not None, "the proxy should have cut a silent stream"
    assert received.startswith(KEEP_ALIVE * 45)
    assert "".join(map(text_of, by_choice(frames(received))[0])) == "late"
