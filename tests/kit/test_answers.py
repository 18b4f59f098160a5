"""Answers in parts, through a real engine, and through a server on a socket."""

import asyncio
import json
import threading
import time

import pytest

from limelight import Engine, SamplingParams
from limelight.errors import StepFailure
from limelight.testing import (
    Answers,
    Fail,
    FailStep,
    Hang,
    Reasoning,
    ToolCall,
    Wait,
    live_server,
    read_stream,
    scripted_engine,
)
from limelight.testing.answers import last_message

CHAT = "/v1/chat/completions"


def ask(*messages: tuple[str, str]) -> dict[str, object]:
    return {"model": "scripted", "messages": [{"role": role, "content": content} for role, content in messages]}


@pytest.mark.anyio
async def test_the_last_message_chooses_the_answer() -> None:
    async with scripted_engine(Answers({"^user: .*rain": "wet", "^system:": "set"}, otherwise="dry")) as engine:

        async def answer(*messages: tuple[str, str]) -> str:
            return (await engine.chat([{"role": role, "content": content} for role, content in messages])).text

        assert await answer(("user", "will it\nrain?")) == "dry"  # not in the line of the role
        assert await answer(("user", "rain?")) == "wet"
        assert await answer(("user", "rain?"), ("assistant", "yes"), ("user", "snow?")) == "dry"
        assert await answer(("system", "be brief")) == "set"


def test_a_message_ends_where_the_next_role_begins() -> None:
    assert last_message("system: a\nuser: b\nand user c\nassistant:") == "user: b\nand user c"
    assert last_message("no conversation") == "no conversation"
    assert last_message("") == ""


@pytest.mark.anyio
async def test_one_fails_alone_and_a_step_with_all_in_it() -> None:
    script = Answers({"alone": ["ab", Fail("as told")], "all": ["ab", FailStep("as told")]}, otherwise="fine")
    async with scripted_engine(script) as engine:
        with pytest.raises(StepFailure, match="as told"):
            await engine.generate("alone")
        with pytest.raises(StepFailure, match="RuntimeError"):
            await engine.generate("all")
        assert (await engine.generate("x")).text == "fine"
        assert engine.statistics().num_free_pages == engine.statistics().num_pages


@pytest.mark.anyio
async def test_what_was_preempted_goes_on_where_it_was() -> None:
    async with scripted_engine(Answers(otherwise="0123456789" * 20), num_pages=30, page_size=8) as engine:
        streams = await _together(engine, 4)
        assert engine.statistics().num_preemptions > 0
        assert set(streams) == {"0123456789" * 20}


async def _together(engine: Engine, count: int) -> list[str]:
    answers = await asyncio.gather(*(engine.generate("x", SamplingParams(max_tokens=500)) for _ in range(count)))
    return [answer.text for answer in answers]


def test_a_wait_takes_its_time_and_a_hang_ends_with_its_release() -> None:
    hang = Hang()
    with live_server(Answers({"wait": ["a", Wait(0.2), "b"], "hang": ["a", hang, "b"]})) as server:
        body = {"model": "scripted", "stream": True}
        began = time.monotonic()
        read_stream(f"{server.url}/v1/completions", body | {"prompt": "wait"})
        assert time.monotonic() - began >= 0.2
        events: list[str] = []
        reader = threading.Thread(
            target=lambda: events.extend(read_stream(f"{server.url}/v1/completions", body | {"prompt": "hang"}))
        )
        reader.start()
        assert hang.reached.wait(10)
        assert server.statistics().num_running == 1
        hang.release()
        reader.join()
        assert events[-1] == "[DONE]"
        server.wait_until_idle()


def test_parts_arrive_as_what_they_are() -> None:
    script = Answers(otherwise=[Reasoning("hm"), "So: ", ToolCall("look", where="here", times=2)])
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with live_server(script) as server:
        events = read_stream(server.url + CHAT, ask(("user", "hi")) | {"stream": True, "tools": tools})
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "hm"
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "So:"
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or []]
    assert json.loads("".join(call.get("arguments") or "" for call in calls)) == {"where": "here", "times": 2}


def test_a_refusal_is_told_with_its_body() -> None:
    with live_server() as server, pytest.raises(AssertionError, match=r"answers 404 .*model_not_found"):
        read_stream(server.url + CHAT, ask(("user", "hi")) | {"model": "other", "stream": True})


def test_a_server_whose_engine_cannot_start_says_why() -> None:
    with pytest.raises(ValueError, match="page_size"), live_server(page_size=3):
        pass


def test_servers_end_with_streams_that_nobody_reads() -> None:
    with live_server(Answers(otherwise=["a", Hang(), "b"])) as server:
        assert read_stream(server.url + CHAT, ask(("user", "hi")) | {"stream": True, "ignore_eos": True}, limit=1)
    assert "limelight-test-server" not in {thread.name for thread in threading.enumerate()}
