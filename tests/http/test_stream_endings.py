"""Whatever fails and whenever: a stream ends once, with one terminal frame, or never began and has an honest status."""

import contextlib
import json
from collections import Counter

import pytest

from limelight.http import create_app
from limelight.http.anthropic.frames import MessageFrames
from limelight.http.chat import ChatFrames
from limelight.http.completions import CompletionFrames
from limelight.http.responses.frames import ResponseFrames
from limelight.testing import scripted_engine
from tests.http.event_source import EventSourceParser
from tests.http.test_disconnect import until
from tests.http.wire import CHAT, COMPLETIONS, chat_body, client_of, completion_body

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
ENDPOINTS = {
    CHAT: (chat_body(n=2), ChatFrames),
    COMPLETIONS: (completion_body(prompt=["a", "b"]), CompletionFrames),
    MESSAGES: (chat_body(max_tokens=1000), MessageFrames),
    RESPONSES: ({"model": "scripted", "input": "hi"}, ResponseFrames),
}
ANSWER = "a short answer"


def failing_step(number):
    """The step with this number fails."""

    def before(step):
        if step.number == number:
            raise RuntimeError

    return scripted_engine(ANSWER, before_step=before)


def dying_model(number):
    """The thread that computes dies instead of this token."""
    answer = [*ANSWER.encode(), 256]

    def script(turn):
        if turn.number == number:
            raise SystemExit
        return answer[turn.number]

    return scripted_engine(script)


def broken_writer(number, writer, monkeypatch):
    """The endpoint's own code breaks at its event number `number`."""
    real, seen = writer.frames, []

    def frames(self, event):
        seen.append(event)
        if len(seen) > number:
            raise ZeroDivisionError
        yield from real(self, event)

    monkeypatch.setattr(writer, "frames", frames)
    return scripted_engine(ANSWER)


def broken_ending(_number, writer, monkeypatch):
    """The endpoint's own code breaks at the end."""

    def ending(self):
        yield b"data: lost\n\n"
        raise ZeroDivisionError

    monkeypatch.setattr(writer, "ending", ending)
    return scripted_engine(ANSWER)


def engine_with(fault, number, writer, monkeypatch):
    """An engine, or an endpoint, that fails at place `number`."""
    if fault == "step":
        return failing_step(number)
    if fault == "death":
        return dying_model(number)
    if fault == "writer":
        return broken_writer(number, writer, monkeypatch)
    if fault == "ending":
        return broken_ending(number, writer, monkeypatch)
    if fault == "refusal":
        return scripted_engine(ANSWER, max_num_requests=1)
    return scripted_engine(ANSWER, step_seconds=0.001 if fault == "stop" else 0.0)


def terminals(events):
    """How often each way of ending occurs."""
    ways = Counter()
    for event in events:
        if event.data == "[DONE]":
            ways["done"] += 1
            continue
        payload = json.loads(event.data)
        ways["error"] += "error" in payload or payload.get("type") == "response.failed"
        ways["stop"] += payload.get("type") in ("message_stop", "response.completed", "response.incomplete")
    return +ways


ONCE = [(fault, 0) for fault in ("none", "ending", "refusal")]
FAULTS = ONCE + [(fault, number) for fault in ("step", "death", "writer", "stop") for number in (0, 4)]


@pytest.mark.parametrize(("fault", "number"), FAULTS)
@pytest.mark.parametrize("resumable", ["0", "1"])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_every_stream_ends_exactly_once(path, resumable, fault, number, monkeypatch):
    body, writer = ENDPOINTS[path]
    engine = engine_with(fault, number, writer, monkeypatch)
    app = create_app(engine)
    received = b""
    async with engine, client_of(app) as client:
        headers = {"x-limelight-resumable": resumable}
        async with (
            engine.stream("hold") if fault == "refusal" else contextlib.nullcontext(),
            client.stream("POST", path, json=body | {"stream": True}, headers=headers) as response,
        ):
            async for data in response.aiter_raw():
                received += data
                if fault == "stop" and received.count(b"\n\n") >= number:
                    await engine.stop()
        if engine.failure is None and fault != "stop":
            await until(lambda: engine.statistics().num_requests == 0)
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/json"
        assert fault in ("step", "death", "refusal")
        assert "error" in json.loads(received)
        return
    assert fault != "refusal"
    events = EventSourceParser().feed(received)
    ways = terminals(events)
    failed = bool(ways["error"])
    assert ways["error"] <= 1
    if path in (MESSAGES, RESPONSES):
        assert ways["stop"] + ways["error"] == 1
        assert terminals(events[-1:]) == ways
    else:
        assert ways["done"] == 1
        assert events[-1].data == "[DONE]"
        assert "error" in json.loads(events[-2].data) or not failed
    assert failed or fault in ("none", "stop", "step", "death", "writer"), "nothing failed so early"
    assert not failed or fault != "none"
