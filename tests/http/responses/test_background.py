"""Responses in the background: queued at once, followed, resumed, cancelled; and nothing of them is left behind."""

import gc
import json
import weakref

import anyio
import anyio.lowlevel
import pytest

from limelight.http import HttpSettings, create_app
from limelight.http.recording import Recording
from limelight.http.responses.run import ResponseRun
from limelight.http.responses.store import ResponseStore
from limelight.testing import scripted_engine
from tests.http.responses.wire import RESPONSES, TERMINAL, body, events, plain, streamed, whole
from tests.http.test_disconnect import Connection, idle, until
from tests.http.test_sse import Barrier
from tests.http.wire import error_of

pytestmark = pytest.mark.anyio

FINAL = ("completed", "incomplete", "failed", "cancelled")


async def ended(client, response_id):
    """The response when it has ended."""
    with anyio.fail_after(60):
        while (response := whole(await client.get(f"{RESPONSES}/{response_id}")))["status"] not in FINAL:
            await anyio.lowlevel.checkpoint()
    return response


async def first_events(response, number):
    """The first events of a stream that goes on."""
    found = []
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            found.append(json.loads(line.removeprefix("data: ")))
        if len(found) == number:
            return found
    raise AssertionError("the stream ended early")


async def test_it_is_queued_then_in_progress_then_completed(serve):
    barrier = Barrier()
    async with serve(scripted_engine("ok", before_step=barrier)) as client:
        queued = whole(await client.post(RESPONSES, json=body(background=True)))
        assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
        assert whole(await client.get(f"{RESPONSES}/{queued['id']}")) == queued
        waiting = error_of(await client.post(RESPONSES, json=body(previous_response_id=queued["id"])), 400)
        assert waiting["param"] == "previous_response_id"
        barrier.open()
        done = await ended(client, queued["id"])
        found = streamed(await client.get(f"{RESPONSES}/{queued['id']}", params={"stream": "true"}))
        again = whole(await client.post(f"{RESPONSES}/{queued['id']}/cancel"))
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["text"] == "ok"
    assert [event["type"] for event in found[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert found[-1]["response"] == done == again


async def test_a_stream_in_the_background_is_the_whole_answer_and_goes_on_without_its_reader(serve):
    async with serve(scripted_engine(step_seconds=0.001)) as client:
        asked = body(background=True, seed=1, max_output_tokens=60, include=["message.output_text.logprobs"])
        async with client.stream("POST", RESPONSES, json=asked | {"stream": True}) as response:
            begun = await first_events(response, 8)
        response_id = begun[0]["response"]["id"]
        path = f"{RESPONSES}/{response_id}"
        rest = await client.get(path, params={"stream": "true", "starting_after": "7"})
        found = [json.loads(line[6:]) for line in rest.text.splitlines() if line.startswith("data: ")]
        every = streamed(await client.get(path, params={"stream": "true"}))
        assert begun + found == every
        header = {"last-event-id": f"{response_id}:{len(every) - 2}"}
        last = await client.get(path, params={"stream": "true"}, headers=header)
        assert last.text.count("data: ") == 1
        posted = await client.post(RESPONSES, json={}, headers=header)
        assert posted.content == last.content
        nothing = await client.get(path, params={"stream": "true", "starting_after": str(len(every) - 1)})
        assert (nothing.status_code, nothing.content) == (200, b"")
        for wrong in ({"last-event-id": "resp_0:1"}, {"last-event-id": f"{response_id}:x"}):
            error_of(await client.get(path, params={"stream": "true"}, headers=wrong), 400)
        error_of(await client.get(path, params={"stream": "true", "starting_after": "x"}), 400)
        foreground = whole(await client.post(RESPONSES, json=asked | {"background": False}))
    assert every[-1]["response"]["status"] == "incomplete"
    assert plain(every[-1]["response"]["output"]) == plain(foreground["output"])


async def test_cancelling_ends_it_and_keeps_what_was_said(serve):
    async with serve(scripted_engine(step_seconds=0.001)) as client:
        asked = body(background=True, stream=True)
        async with client.stream("POST", RESPONSES, json=asked) as response:
            begun = await first_events(response, 8)
            path = f"{RESPONSES}/{begun[0]['response']['id']}"
            cancelled = whole(await client.post(f"{path}/cancel"))
        assert cancelled["status"] == "cancelled"
        assert len(cancelled["output"][0]["content"][0]["text"]) >= 3
        assert whole(await client.get(path)) == cancelled
        assert events((await client.get(path, params={"stream": "true"})).content)[-1]["response"] == cancelled
        assert whole(await client.post(f"{path}/cancel")) == cancelled
        foreground = whole(await client.post(RESPONSES, json=body(max_output_tokens=3)))
        error = error_of(await client.post(f"{RESPONSES}/{foreground['id']}/cancel"), 400)
        assert "background" in error["message"]
        error_of(await client.post(f"{RESPONSES}/resp_0/cancel"), 404)


async def test_deleting_a_running_one_aborts_it(serve):
    engine = scripted_engine(step_seconds=0.001)
    async with serve(engine) as client:
        path = f"{RESPONSES}/{whole(await client.post(RESPONSES, json=body(background=True)))['id']}"
        assert (await client.delete(path)).json()["deleted"] is True
        error_of(await client.get(path), 404)
        with anyio.fail_after(60):
            while engine.statistics().num_free_seats < engine.statistics().num_seats:
                await anyio.lowlevel.checkpoint()


async def test_what_cannot_run_in_the_background_is_said_at_once(serve):
    async with serve() as client:
        error = error_of(await client.post(RESPONSES, json=body(background=True, store=False)), 400)
        assert error["param"] == "background"
    async with serve(settings=HttpSettings(max_stored_responses=0)) as client:
        error_of(await client.post(RESPONSES, json=body(background=True)), 400)
    async with serve(scripted_engine(max_num_requests=1, step_seconds=0.001)) as client:
        first = whole(await client.post(RESPONSES, json=body(background=True)))
        full = await client.post(RESPONSES, json=body(background=True))
        assert error_of(full, 503)["code"] == "overloaded"
        await client.delete(f"{RESPONSES}/{first['id']}")


async def test_a_prompt_that_does_not_fit_fails_the_response(serve):
    async with serve(scripted_engine(max_model_len=64)) as client:
        queued = whole(await client.post(RESPONSES, json=body(background=True, input="x" * 100)))
        done = await ended(client, queued["id"])
    assert (done["status"], done["error"]["code"]) == ("failed", "invalid_prompt")


async def test_it_ends_with_the_engine(serve):
    engine = scripted_engine(step_seconds=0.001)
    async with serve(engine) as client:
        queued = whole(await client.post(RESPONSES, json=body(background=True)))
        await engine.stop()
        done = await ended(client, queued["id"])
    assert (done["status"], done["error"]["code"]) == ("failed", "server_error")


async def test_nothing_but_json_and_events_is_kept_of_one_that_has_ended(serve, monkeypatch):
    runs = weakref.WeakSet()
    make = ResponseRun.__init__

    def remembered(run, *arguments):
        make(run, *arguments)
        runs.add(run)

    monkeypatch.setattr(ResponseRun, "__init__", remembered)
    async with serve(scripted_engine("ok")) as client:
        queued = whole(await client.post(RESPONSES, json=body(background=True)))
        await ended(client, queued["id"])
        assert streamed(await client.get(f"{RESPONSES}/{queued['id']}?stream=true"))[-1]["type"] in TERMINAL
        with anyio.fail_after(60):
            while gc.collect() >= 0 and runs:
                await anyio.lowlevel.checkpoint()


async def test_events_that_were_dropped_are_gone_but_the_response_is_not(serve):
    settings = HttpSettings(resume_stream_bytes=128 * 1024)
    async with serve(scripted_engine(), settings) as client:
        queued = whole(await client.post(RESPONSES, json=body(background=True, max_output_tokens=1000)))
        done = await ended(client, queued["id"])
        error = error_of(await client.get(f"{RESPONSES}/{queued['id']}?stream=true"), 410)
    assert error["code"] == "stream_gone"
    assert len(done["output"][0]["content"][0]["text"]) == 1000


async def test_a_response_whose_host_gives_up_before_its_id_is_told_is_aborted_and_not_kept(monkeypatch):
    stores = []

    class Watched(ResponseStore):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            stores.append(self)

    monkeypatch.setattr("limelight.http.app.ResponseStore", Watched)
    monkeypatch.setattr(Recording, "begun", lambda _: anyio.sleep_forever())
    engine = scripted_engine(step_seconds=0.001)
    app = create_app(engine)
    (store,) = stores
    connection = Connection(RESPONSES, body(background=True, max_output_tokens=1000))
    async with engine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, connection.scope, connection.receive, connection.send)
            await until(lambda: engine.statistics().num_running)
            assert len(store) == 1
            tasks.cancel_scope.cancel()
        assert len(store) == 0
        await until(lambda: idle(engine))
