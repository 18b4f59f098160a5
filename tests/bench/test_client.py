"""The client against a socket that sends what it is told to: streams, refusals, broken ends."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from limelight.bench.client import send
from limelight.bench.request_result import RequestResult
from limelight.bench.serving import ServingLoad, drive
from limelight.bench.target import Target

OK = b"HTTP/1.1 200 OK\r\n\r\n"
DONE = b"data: [DONE]\n\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def event(**fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def text(words: str, **fields: object) -> bytes:
    return event(choices=[{"text": words}], **fields)


async def answered(answer: bytes | Answer, run: Callable[[Target], Awaitable[RequestResult]]) -> RequestResult:
    """What `run` makes of a server that reads one request and sends `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r")[0]))
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(writer)
        writer.close()
        await writer.wait_closed()

    handlers: list[asyncio.Task[None] | None] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        result = await run(Target("127.0.0.1", server.sockets[0].getsockname()[1]))
    await asyncio.gather(*(handler for handler in handlers if handler is not None), return_exceptions=True)
    return result


async def sent(answer: bytes | Answer) -> RequestResult:
    return await answered(answer, lambda target: send(target, "/v1/completions", {"prompt": "x"}, None))


@pytest.mark.anyio
async def test_a_stream_is_timed_event_by_event() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + event(choices=[{"delta": {"role": "assistant", "content": ""}}]))
        for words in ("a", "b", "c"):
            await asyncio.sleep(0.02)
            writer.write(event(choices=[{"delta": {"content": words}}]))
            await writer.drain()
        writer.write(event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3}) + DONE)

    result = await sent(answer)
    assert result.error is None
    assert (result.num_input_tokens, result.num_output_tokens) == (7, 3)
    assert result.ttft_seconds >= 0.015, "the event that names the role is no token"
    assert len(result.gaps_seconds) == 2
    assert result.latency_seconds == pytest.approx(result.ttft_seconds + sum(result.gaps_seconds))


@pytest.mark.anyio
async def test_thoughts_and_a_last_token_without_text_are_tokens() -> None:
    thought = event(choices=[{"delta": {"reasoning_content": "hm"}}])
    result = await sent(OK + thought + event(choices=[{"delta": {}, "finish_reason": "length"}]) + DONE)
    assert len(result.arrivals_seconds) == 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (OK + text("a"), "the connection ended before the stream did"),
        (b"", "the connection ended before the stream did"),
        (OK + text("a") + event(error={"message": "the device is lost", "code": 1}) + DONE, "the device is lost"),
        (b'HTTP/1.1 404 Not Found\r\n\r\n{"error": {"message": "no such model"}}', "404 Not Found: no such model"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>\nnginx</html>", "502 Bad Gateway: <html> nginx</html>"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "500 Oops: "),
        (OK + b"data: {broken\n\n", "DecodeError: JSON is malformed"),
        (b"nonsense\r\n\r\n", "ValueError: this is no HTTP"),
    ],
)
async def test_a_failure_says_what_happened(answer: bytes, told: str) -> None:
    result = await sent(answer)
    assert result.error is not None
    assert result.error.startswith(told)


@pytest.mark.anyio
async def test_nobody_there_is_a_failure() -> None:
    result = await send(Target("127.0.0.1", 9), "/v1/completions", {}, None)
    assert result.error is not None
    assert result.error.startswith("no connection")


@pytest.mark.anyio
async def test_without_usage_tokens_are_estimated_and_that_is_told() -> None:
    load = ServingLoad(num_prompts=1, input_len=5, prefix_len=2)

    async def driven(target: Target) -> RequestResult:
        [result], _ = await drive(target, "m", load, lambda _: None)
        return result

    result = await answered(OK + text("a") + text("b") + DONE, driven)
    assert result.is_estimated
    assert (result.num_input_tokens, result.num_output_tokens) == (7, 2)


@pytest.mark.anyio
async def test_a_silent_server_is_given_up() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        await given_up.wait()

    given_up = asyncio.Event()
    load = ServingLoad(num_prompts=1, timeout_seconds=0.05)

    async def drive_and_tell(target: Target) -> RequestResult:
        [result], _ = await drive(target, "m", load, lambda _: None)
        given_up.set()
        return result

    result = await answered(answer, drive_and_tell)
    assert result.error == "no end within 0.05 s"


def test_a_request_asks_for_a_stream_of_exactly_so_many_tokens() -> None:
    path, body = ServingLoad(output_len=9).body("m", [1, 2])
    assert (path, body["prompt"], body["max_tokens"], body["stream"]) == ("/v1/completions", [1, 2], 9, True)
    assert body["ignore_eos"]
    path, body = ServingLoad(endpoint="chat", output_len=9, ignore_eos=False).body("m", "hi")
    assert (path, body["messages"][0]["content"], body["max_completion_tokens"]) == ("/v1/chat/completions", "hi", 9)
    assert "ignore_eos" not in body
