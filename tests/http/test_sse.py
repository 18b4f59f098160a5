"""Streams: when the status line goes out, what fills a silence, how they end, and how long a line may get."""

import threading

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.generation import AlternativeToken, Delta, GenerationRequest, SamplingParams, TextPrompt, TokenLogprob
from limelight.http import HttpSettings
from limelight.http.exchange import ExchangeRecorder
from limelight.http.sse import KEEP_ALIVE, StreamedAnswer, failure_frames, pieces
from limelight.testing import scripted_engine
from tests.http.wire import (
    CHAT,
    COMPLETIONS,
    by_choice,
    chat_body,
    completion_body,
    error_of,
    frames,
    serving,
    streamed,
)


class Barrier:
    """Holds the engine's steps back until it is opened; a number of steps may pass before."""

    def __init__(self, passing: int = 0) -> None:
        self._passing = passing
        self._open = threading.Event()

    def __call__(self, _step):
        self._passing -= 1
        if self._passing < 0:
            assert self._open.wait(20)

    def open(self):
        self._open.set()


@pytest.mark.anyio
async def test_stream_headers_keep_proxies_from_buffering(serve):
    async with serve() as client:
        response = await client.post(CHAT, json=chat_body(stream=True, max_tokens=2))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in response.headers
    assert "content-encoding" not in response.headers


@pytest.mark.anyio
async def test_headers_go_out_after_the_wait_and_comments_fill_the_silence():
    barrier = Barrier()
    settings = HttpSettings(header_wait_seconds=0.05, keep_alive_seconds=0.05)
    async with (
        serving(scripted_engine("late", before_step=barrier), settings) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)) as response,
    ):
        assert response.status_code == 200
        received = b""
        async for data in response.aiter_raw():
            received += data
            if received.count(KEEP_ALIVE) == 3:
                barrier.open()
    assert received.startswith(KEEP_ALIVE * 3)
    assert "".join(c["delta"].get("content", "") for c in by_choice(frames(received))[0]) == "late"


@pytest.mark.anyio
async def test_keep_alives_can_be_switched_off():
    barrier = Barrier()
    settings = HttpSettings(header_wait_seconds=0.01, keep_alive_seconds=None)
    async with (
        serving(scripted_engine("late", before_step=barrier), settings) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)) as response,
    ):
        barrier.open()
        received = await response.aread()
    assert b"keep-alive" not in received
    assert frames(received)


@pytest.mark.anyio
async def test_tokens_arrive_one_by_one_and_not_at_the_end():
    barrier = Barrier(passing=3)
    async with (
        serving(scripted_engine("abcdef", before_step=barrier)) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)) as response,
    ):
        received = b""
        async for data in response.aiter_raw():
            received += data
            if received.endswith(b'"content":"c"},"logprobs":null,"finish_reason":null}]}\n\n'):
                barrier.open()
    assert len(by_choice(frames(received))[0]) == 8


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
    ],
)
async def test_a_bad_value_is_a_400_before_any_stream_begins(serve, stream, fields, param):
    async with serve() as client:
        error = error_of(await client.post(CHAT, json=chat_body(stream=stream) | fields), 400)
    assert error["param"] == param


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_its_own_status(serve, stream):
    def fail(_step):
        raise RuntimeError("secret detail")

    async with serve(scripted_engine(before_step=fail)) as client:
        error = error_of(await client.post(CHAT, json=chat_body(stream=stream)), 500)
    assert error["code"] == "step_failed"
    assert "secret" not in error["message"]
    assert "RuntimeError" not in error["message"]


@pytest.mark.anyio
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_a_failure_in_mid_stream_is_one_error_frame_then_done_and_others_go_on(path, body, caplog):
    def fail(step):
        if step.number == 4:
            raise RuntimeError("secret detail")

    engine = scripted_engine(before_step=fail)
    async with serving(engine) as client:
        pages = engine.statistics().num_free_pages
        response = await client.post(path, json=body(stream=True, max_tokens=50))
        *chunks, last = streamed(response)
        assert len(chunks) >= 2
        assert last.keys() == {"error"}
        assert last["error"]["code"] == "step_failed"
        assert last["error"]["request_id"] == response.headers["x-request-id"]
        assert f"request {last['error']['request_id']} failed" in caplog.text
        assert b"secret" not in response.content
        assert engine.statistics().num_free_pages == pages
        assert (await client.post(path, json=body(max_tokens=3))).status_code == 200


@pytest.mark.anyio
async def test_a_dead_engine_ends_every_stream_with_an_error_and_answers_500_after(serve):
    seeds = set()

    def script(turn):
        seeds.add(turn.sampling.seed)
        if len(seeds) == 4 and turn.number >= 3:  # all of them are streams by now
            raise SystemExit
        return 97

    engine = scripted_engine(script, step_seconds=0.002)
    async with serve(engine) as client:
        results = []

        async def ask():
            results.append(streamed(await client.post(CHAT, json=chat_body(stream=True, max_tokens=1500))))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
        assert all("error" in result[-1] for result in results)
        assert (await client.post(CHAT, json=chat_body())).status_code in (500, 503)
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    "prompt", ["x" * 200_000, "\x00" * 100_000, "😀" * 50_000], ids=["plain", "escaped", "four bytes"]
)
async def test_a_long_echo_is_cut_into_lines_under_64_kib(serve, prompt):
    engine = scripted_engine("end", num_pages=20_000, max_model_len=300_000, max_num_batched_tokens=65536)
    async with serve(engine) as client:
        chunks = streamed(
            await client.post(COMPLETIONS, json=completion_body(prompt=prompt, echo=True, stream=True, max_tokens=1))
        )
    assert "".join(choice["text"] for choice in by_choice(chunks)[0]) == prompt + "e"


def entry(raw: bytes, num_top: int) -> TokenLogprob:
    token = raw.decode(errors="replace")
    return TokenLogprob(1, token, raw, -1.0, tuple(AlternativeToken(2, token, raw, -2.0) for _ in range(num_top)))


@given(
    tokens=st.lists(st.text(max_size=40), max_size=60),
    cuts=st.randoms(use_true_random=False),
    num_top=st.integers(0, 20),
)
def test_pieces_of_a_delta_join_to_the_delta_and_fit_a_frame(tokens, cuts, num_top):
    text = "".join(tokens)
    raw = text.encode()
    borders = sorted(cuts.sample(range(len(raw) + 1), min(len(raw) + 1, 50)))
    entries = tuple(
        entry(raw[start:end], num_top) for start, end in zip([0, *borders], [*borders, len(raw)], strict=True)
    )
    parts = list(pieces(Delta(text=text, logprobs=entries)))
    assert "".join(part for part, _ in parts) == text
    assert tuple(e for _, group in parts for e in group or ()) == entries
    spoken = b""
    for part, group in parts[:-1]:
        spoken += b"".join(e.bytes for e in group or ())
        assert part == "" or spoken.decode(errors="ignore").endswith(part)


@given(st.text(min_size=1))
def test_text_without_logprobs_is_cut_and_nothing_is_lost(text):
    long = text * 5000
    parts = list(pieces(Delta(text=long)))
    assert "".join(part for part, _ in parts) == long
    assert max(len(part) for part, _ in parts) <= 4096
    assert all(group is None for _, group in parts)


def test_a_delta_with_nothing_new_has_no_pieces():
    assert list(pieces(Delta())) == []
    assert list(pieces(Delta(logprobs=()))) == []


@pytest.mark.anyio
async def test_a_bug_after_the_headers_ends_the_stream_with_one_error_frame(monkeypatch):
    class BrokenWriter:
        keep_alive = KEEP_ALIVE

        def frames(self, event):
            raise ZeroDivisionError("secret detail")

        def opening(self):
            return iter(())

        def ending(self):
            return iter(())

        def failure(self, error):
            return failure_frames(error)

    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        await anyio.sleep_forever()

    request = GenerationRequest(request_id="r", prompt=TextPrompt("hi"), sampling=SamplingParams(max_tokens=2))
    async with scripted_engine("hello") as engine:
        answer = StreamedAnswer(engine, [request], BrokenWriter(), HttpSettings(), {})
        await ExchangeRecorder(answer, engine.telemetry, ())(
            {"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send
        )
    body = b"".join(message.get("body", b"") for message in sent)
    assert body.count(b'data: {"error"') == 1
    assert body.endswith(b"data: [DONE]\n\n")
    assert b"secret" not in body
    assert b"ZeroDivision" not in body
    assert sent[-1]["more_body"] is False
