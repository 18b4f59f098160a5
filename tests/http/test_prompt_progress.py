"""Comments that tell how far a prompt is: asked for, never in the way of events, complete before the first token."""

import json
import re

import anyio
import pytest

from limelight.http import HttpSettings, prompt_progress
from limelight.testing import scripted_engine
from tests.http.event_source import EventSourceParser
from tests.http.test_disconnect import until
from tests.http.test_sse import Barrier
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, serving

pytestmark = pytest.mark.anyio

PROGRESS = {"x-limelight-progress": "1"}
RESUMABLE = {"x-limelight-resumable": "1"}
LONG = completion_body(prompt="x" * 300, stream=True, max_tokens=2)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
    monkeypatch.setattr(prompt_progress, "PROGRESS_SECONDS", 0.001)
    monkeypatch.setattr("limelight.http.stream_options.PROGRESS_SECONDS", 0.001)


def told(content):
    """The progress in the comments of a stream, and the events after the last of them."""
    head, _, tail = content.rpartition(b": progress ")
    lines = [line for line in (head + b": progress " + tail).split(b"\n") if line.startswith(b": progress ")]
    return [json.loads(line.removeprefix(b": progress ")) for line in lines], tail


@pytest.mark.parametrize("resumable", [{}, RESUMABLE])
async def test_tokens_done_rise_to_the_whole_prompt_before_the_first_token(resumable):
    engine = scripted_engine(max_num_batched_tokens=64, step_seconds=0.02)
    async with serving(engine, HttpSettings(header_wait_seconds=0)) as client:
        response = await client.post(COMPLETIONS, json=LONG, headers=PROGRESS | resumable)
    progress, tail = told(response.content)
    done = [one["prompt_tokens_done"] for one in progress]
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert {one["prompt_tokens"] for one in progress} == {301}
    assert {one["cached_tokens"] for one in progress} == {0}
    assert done[-1] == 301
    assert done.count(301) == 1, "a token was not under way before it was told"
    events = EventSourceParser().feed(response.content)
    assert len(events) == len(EventSourceParser().feed(b"\n" + tail.partition(b"\n")[2])), "no event came earlier"


@pytest.mark.parametrize("resumable", [{}, RESUMABLE])
async def test_the_position_falls_to_nought_and_a_cached_prompt_is_told(resumable):
    barrier = Barrier()
    engine = scripted_engine(max_num_seqs=1, step_seconds=0.005, max_num_batched_tokens=512, before_step=barrier)
    results = {}
    async with serving(engine, HttpSettings(header_wait_seconds=0)) as client:

        async def ask(number):
            response = await client.post(COMPLETIONS, json=LONG, headers=PROGRESS | resumable)
            results[number] = told(response.content)[0]

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(ask, number)
                await until(lambda number=number: in_scheduler(engine) > number)
            barrier.open()
    for progress in results.values():
        positions = [one["queue_position"] for one in progress]
        assert positions == sorted(positions, reverse=True)
        assert positions[-1] == 0
    assert results[3][0]["queue_position"] in (2, 3)
    assert results[3][-1] == {
        "queue_position": 0,
        "prompt_tokens": 301,
        "prompt_tokens_done": 301,
        "cached_tokens": 288,
    }


def in_scheduler(engine):
    statistics = engine.statistics()
    return statistics.num_running + statistics.num_waiting


async def test_events_and_bytes_are_the_same_without_the_comments():
    def neutral(content):
        return re.sub(rb'"(id|created)":("[^"]*"|\d+)', b"", content)

    async with serving(scripted_engine("answer")) as client:
        body = chat_body(stream=True)
        plain = await client.post(CHAT, json=body)
        off = await client.post(CHAT, json=body, headers={"x-limelight-progress": "0"})
        on = await client.post(CHAT, json=body, headers=PROGRESS)
    assert neutral(off.content) == neutral(plain.content)
    assert b": " not in plain.content.replace(b"data: ", b"")
    assert neutral(re.sub(rb": progress [^\n]*\n\n", b"", on.content)) == neutral(plain.content)
    assert len(told(on.content)[0]) == 1


async def test_several_prompts_are_summed():
    async with serving(scripted_engine("answer")) as client:
        body = completion_body(stream=True, prompt=["abc", "defgh"])
        response = await client.post(COMPLETIONS, json=body, headers=PROGRESS)
    assert told(response.content)[0][-1]["prompt_tokens"] == 4 + 6


async def test_a_failure_before_the_first_token_is_told_as_ever():
    def fail(_step):
        raise RuntimeError

    async with serving(scripted_engine(before_step=fail)) as client:
        for headers in (PROGRESS, PROGRESS | RESUMABLE):
            assert (await client.post(CHAT, json=chat_body(stream=True), headers=headers)).status_code == 500
