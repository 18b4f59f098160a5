"""Streams that survive their connection: cut anywhere and taken up again they are the stream that was never cut."""

import asyncio
import gc
import json
import re
from functools import partial

import anyio
import httpx
import pytest

from limelight.http import HttpSettings, create_app
from limelight.http.frame_log import FrameLog
from limelight.http.recordings import Recordings
from limelight.testing import scripted_engine
from tests.http.event_source import EventSourceParser, cut_and_resumed, read_events, some_events
from tests.http.test_disconnect import Connection, free_pages, idle, until
from tests.http.test_sse import Barrier
from tests.http.wire import CHAT, COMPLETIONS, chat_body, client_of, completion_body, error_of, serving

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
RESUMABLE = {"x-limelight-resumable": "1"}
ANSWER = "Grüße 😀!"
USAGE = {"stream_options": {"include_usage": True}}
STREAMS = [
    pytest.param(CHAT, chat_body(stream=True, logprobs=True, top_logprobs=2, **USAGE), id="chat"),
    pytest.param(COMPLETIONS, completion_body(stream=True, prompt=["a", "b"], logprobs=1, **USAGE), id="completions"),
    pytest.param(MESSAGES, chat_body(stream=True, max_tokens=100), id="messages"),
    pytest.param(RESPONSES, {"model": "scripted", "input": "hi", "stream": True, "store": False}, id="responses"),
]
ENDLESS = chat_body(stream=True, ignore_eos=True, max_tokens=2000)


def numbers(events):
    """The frame numbers of events, which all belong to one stream."""
    ids = [event.last_event_id.split(":") for event in events]
    assert len({stream_id for stream_id, _ in ids}) == 1
    return [int(number) for _, number in ids]


def heard(events):
    """What a client makes of events: text, log-probabilities, reasons and usage, whatever ids and dates they carry."""
    text, rest = {}, []
    for event in events:
        if event.data == "[DONE]":
            rest.append("done")
            continue
        payload = json.loads(event.data)
        for choice in payload.get("choices") or []:
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            text[choice["index"]] = text.get(choice["index"], "") + piece
            rest.append((choice["index"], choice["finish_reason"], json.dumps(choice["logprobs"])))
        if payload.get("type") == "content_block_delta":
            text["message"] = text.get("message", "") + payload["delta"]["text"]
        if payload.get("type") == "response.output_text.delta":
            text["response"] = text.get("response", "") + payload["delta"]
        rest.append(json.dumps(payload.get("usage") or payload.get("response", {}).get("usage")))
    return text, sorted(map(str, rest))


def error_in(event):
    """The error object of an event."""
    return json.loads(event.data)["error"]


@pytest.mark.parametrize("again", ["POST", "GET", "after"])
@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_cut_after_every_kth_event_it_is_the_stream_that_was_never_cut(path, body, again):
    async with serving(scripted_engine(ANSWER, step_seconds=0.0002)) as client:
        await client.post(path, json=body)  # from now on the prompt is cached, which the usage tells
        plain = await some_events(client, None, "POST", path, json=body)
        assert {event.last_event_id for event in plain} == {""}
        for every in range(1, len(plain) + 1):
            events = await cut_and_resumed(client, every, again, path, json=body)
            assert numbers(events) == list(range(len(events)))
            stream_id = events[0].last_event_id.partition(":")[0]
            assert events == await some_events(client, None, "GET", f"/v1/streams/{stream_id}")
            assert heard(events) == heard(plain)


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_but_for_ids_and_retry_the_bytes_are_those_of_an_ordinary_stream(path, body):
    def neutral(content):
        return re.sub(rb'"(id|item_id|created|created_at|completed_at)":("[^"]*"|[\d.]+)', b"", content)

    async with serving(scripted_engine(ANSWER)) as client:
        await client.post(path, json=body)  # from now on the prompt is cached, which the usage tells
        plain = (await client.post(path, json=body)).content
        resumable = await client.post(path, json=body, headers=RESUMABLE)
    stream_id = resumable.headers["x-limelight-stream"]
    assert re.fullmatch(r"[\w-]{48}", stream_id)
    assert b"\r" not in resumable.content
    frames = resumable.content.split(b"\n\n")[:-1]
    for number, frame in enumerate(frames):
        head = f"id: {stream_id}:{number}\n" + ("retry: 1000\n" if number == 0 else "")
        assert frame.startswith(head.encode())
        assert b"data: " in frame
    assert b"id: " not in plain
    assert b"retry" not in plain
    stripped = re.sub(rb"(?m)^(id|retry): .*\n", b"", resumable.content)
    if body.get("prompt") != ["a", "b"]:  # whose choices interleave as they come
        assert neutral(stripped) == neutral(plain)


async def test_the_prompt_is_not_run_again():
    engine = scripted_engine(ANSWER)
    async with serving(engine) as client:
        events = await some_events(client, 2, "POST", CHAT, json=chat_body(stream=True), headers=RESUMABLE)
        last = {"last-event-id": events[-1].last_event_id}
        before = engine.statistics().prefix_queries_tokens
        rest = await some_events(client, None, "POST", CHAT, json=chat_body(stream=True), headers=last)
        assert await some_events(client, None, "POST", CHAT, content=b"", headers=last) == rest
        assert engine.statistics().prefix_queries_tokens == before


async def test_after_the_last_event_a_reader_is_told_not_to_come_again():
    async with serving(scripted_engine(ANSWER)) as client:
        events = await some_events(client, None, "POST", CHAT, json=chat_body(stream=True), headers=RESUMABLE)
        response = await client.post(CHAT, headers={"last-event-id": events[-1].last_event_id})
    assert (response.status_code, response.content) == (204, b"")


async def test_several_readers_follow_one_stream_while_it_runs():
    barrier = Barrier(passing=4)
    async with (
        serving(scripted_engine(ANSWER, before_step=barrier)) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True), headers=RESUMABLE) as response,
        anyio.create_task_group() as tasks,
    ):
        url = f"/v1/streams/{response.headers['x-limelight-stream']}"
        results = []

        async def read(after, task_status):
            async with client.stream("GET", f"{url}?after={after}") as reader:
                task_status.started()
                results.append((after, [event async for event in read_events(reader)]))

        first = read_events(response)
        events = [await anext(first) for _ in range(3)]
        for after in (0, 1, 2):
            await tasks.start(partial(read, after))
        barrier.open()
        events += [event async for event in first]
    assert events[-1].data == "[DONE]"
    assert len(results) == 3
    for after, part in results:
        assert part == events[after + 1 :]


async def test_a_stream_belongs_to_the_key_that_began_it():
    settings = HttpSettings(api_keys={"ada": "secret-a", "bob": "secret-b"})
    ada, bob = ({"authorization": f"Bearer secret-{letter}"} for letter in "ab")
    async with serving(scripted_engine(ANSWER), settings) as client:
        events = await some_events(client, None, "POST", CHAT, json=chat_body(stream=True), headers=RESUMABLE | ada)
        stream_id = events[0].last_event_id.partition(":")[0]
        assert await some_events(client, None, "GET", f"/v1/streams/{stream_id}", headers=ada) == events
        answers = [
            await client.get(f"/v1/streams/{stream_id}", headers=bob),
            await client.get("/v1/streams/unknown", headers=bob),
            await client.get(f"/v1/streams/{stream_id[:-1]}é", headers=ada),
            await client.delete(f"/v1/streams/{stream_id}", headers=bob),
            await client.post(CHAT, headers=bob | {"last-event-id": f"{stream_id}:1"}),
            await client.post(CHAT, headers=ada | {"last-event-id": "unknown:1"}),
        ]
        errors = [error_of(answer, 404) | {"request_id": ""} for answer in answers]
        assert all(error == errors[0] for error in errors)
        assert errors[0]["code"] == "stream_not_found"
        assert (await client.get(f"/v1/streams/{stream_id}")).status_code == 401


async def test_what_is_not_kept_any_more_is_gone_and_not_unknown():
    settings = HttpSettings(resume_stream_bytes=128 * 1024, resume_memory_bytes=256 * 1024)
    async with serving(scripted_engine(lambda _: 97), settings) as client:

        async def run(num_tokens):
            body = completion_body(stream=True, max_tokens=num_tokens)
            return await some_events(client, None, "POST", COMPLETIONS, json=body, headers=RESUMABLE)

        long = await run(1000)
        assert numbers(long) == list(range(len(long))), "whoever reads along misses nothing"
        stream_id = long[0].last_event_id.partition(":")[0]
        error = error_of(await client.get(f"/v1/streams/{stream_id}"), 410)
        assert error["code"] == "stream_gone"
        last = {"last-event-id": long[-3].last_event_id}
        assert await some_events(client, None, "POST", COMPLETIONS, headers=last) == long[-2:]
        for _ in range(4):
            await run(400)
        for response in (
            await client.get(f"/v1/streams/{stream_id}"),
            await client.post(COMPLETIONS, headers=last),
            await client.delete(f"/v1/streams/{stream_id}"),
        ):
            assert error_of(response, 410)["code"] == "stream_gone"


async def test_without_readers_a_stream_is_aborted_after_its_grace_time_and_says_so():
    engine = scripted_engine(step_seconds=0.001, num_pages=2000)
    async with serving(engine) as client:
        before = free_pages(engine)
        headers = RESUMABLE | {"x-limelight-grace": "0.05"}
        events = await some_events(client, 2, "POST", CHAT, json=ENDLESS, headers=headers)
        assert not idle(engine)
        await until(lambda: idle(engine))
        assert free_pages(engine) == before
        *rest, error, done = await some_events(
            client, None, "POST", CHAT, headers={"last-event-id": events[-1].last_event_id}
        )
        assert numbers([*events, *rest, error, done]) == list(range(len(events) + len(rest) + 2))
        assert error_in(error)["code"] == "request_expired"
        assert "0.05 seconds" in error_in(error)["message"]
        assert done.data == "[DONE]"


async def test_within_its_grace_time_a_stream_goes_on_without_readers():
    engine = scripted_engine(step_seconds=0.001)
    async with serving(engine) as client:
        body = chat_body(stream=True, ignore_eos=True, max_tokens=50)
        events = await some_events(client, 2, "POST", CHAT, json=body, headers=RESUMABLE)
        await until(lambda: idle(engine))
        rest = await some_events(client, None, "POST", CHAT, headers={"last-event-id": events[-1].last_event_id})
    assert sum(len(text) for text in heard([*events, *rest])[0].values()) == 50


async def test_delete_aborts_a_running_stream_and_forgets_one_that_has_ended():
    engine = scripted_engine(step_seconds=0.001, num_pages=2000)
    async with serving(engine) as client:
        before = free_pages(engine)
        async with client.stream("POST", CHAT, json=ENDLESS, headers=RESUMABLE) as response:
            url = f"/v1/streams/{response.headers['x-limelight-stream']}"
            reading = read_events(response)
            await anext(reading)
            assert (await client.delete(url)).status_code == 204
            events = [event async for event in reading]
        assert error_in(events[-2])["code"] == "request_cancelled"
        assert events[-1].data == "[DONE]"
        await until(lambda: free_pages(engine) == before)
        replayed = await some_events(client, None, "GET", url)
        assert error_in(replayed[-2]) == error_in(events[-2])
        assert (await client.delete(url)).status_code == 204
        assert error_of(await client.delete(url), 410)["code"] == "stream_gone"


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_an_error_in_mid_stream_is_replayed(path, body):
    def fail(step):
        if step.number == 3:
            raise RuntimeError

    async with serving(scripted_engine(ANSWER, before_step=fail)) as client:
        events = await some_events(client, None, "POST", path, json=body, headers=RESUMABLE)
        errors = [event for event in events if event.name == "response.failed" or '"error":{' in event.data]
        assert len(errors) == 1
        assert events.index(errors[0]) >= len(events) - 2
        last = {"last-event-id": events[0].last_event_id}
        assert await some_events(client, None, "POST", path, headers=last) == events[1:]


async def test_an_early_error_has_its_own_status_and_nothing_is_kept():
    def fail(_step):
        raise RuntimeError

    engine = scripted_engine(before_step=fail)
    async with serving(engine) as client:
        error = error_of(await client.post(CHAT, json=chat_body(stream=True), headers=RESUMABLE), 500)
        assert error["code"] == "step_failed"
        assert error_of(await client.post(CHAT, json=chat_body(stream=True, n=0), headers=RESUMABLE), 400)
        await until(lambda: idle(engine))


async def test_a_client_that_leaves_before_it_knows_the_id_leaves_nothing():
    barrier = Barrier()
    engine = scripted_engine(before_step=barrier)
    async with serving(engine, HttpSettings(header_wait_seconds=20)) as client:
        with anyio.move_on_after(0.1):
            await client.post(CHAT, json=ENDLESS, headers=RESUMABLE)
        barrier.open()
        await until(lambda: idle(engine))


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-limelight-resumable": "yes"}, "x-limelight-resumable"),
        ({"x-limelight-progress": "2"}, "x-limelight-progress"),
        ({"x-limelight-grace": "10"}, "x-limelight-grace"),
        ({**RESUMABLE, "x-limelight-grace": "long"}, "x-limelight-grace"),
        ({**RESUMABLE, "x-limelight-grace": "nan"}, "x-limelight-grace"),
        ({**RESUMABLE, "x-limelight-grace": "-1"}, "x-limelight-grace"),
        ({**RESUMABLE, "x-limelight-grace": "300.5"}, "x-limelight-grace"),
        ({"last-event-id": "5"}, None),
        ({"last-event-id": "a:b"}, "last-event-id"),
        ({"last-event-id": f"a:{'9' * 5000}"}, "last-event-id"),
    ],
)
async def test_an_impossible_header_is_refused_by_name(shared_client, headers, param):
    answer = await shared_client.post(CHAT, json=chat_body(stream=True), headers=headers)
    error = error_of(answer, 400 if param else 404)
    assert error["param"] == param
    assert len(error["message"]) < 300


async def test_headers_for_streams_mean_nothing_to_a_whole_answer(shared_client):
    answer = await shared_client.post(
        CHAT, json=chat_body(max_tokens=2), headers=RESUMABLE | {"x-limelight-grace": "5"}
    )
    assert answer.status_code == 200
    assert "x-limelight-stream" not in answer.headers


async def test_numbers_that_are_not_there_yet_are_refused():
    async with serving(scripted_engine(ANSWER)) as client:
        events = await some_events(client, None, "POST", CHAT, json=chat_body(stream=True), headers=RESUMABLE)
        stream_id = events[0].last_event_id.partition(":")[0]
        url = f"/v1/streams/{stream_id}"
        assert f"it has {len(events)}" in error_of(await client.get(f"{url}?after={len(events)}"), 400)["message"]
        for query in ("?after=-1", "?after=x", "?after="):
            assert error_of(await client.get(url + query), 400)["param"] == "after"
        other = {"last-event-id": "other:1"}
        assert error_of(await client.get(url, headers=other), 400)["param"] == "last-event-id"
        both = await some_events(client, None, "GET", f"{url}?after=0", headers={"last-event-id": f"{stream_id}:3"})
        assert both == events[4:], "an EventSource comes back to the URL that it began with"


async def test_a_keep_alive_is_a_comment_line_that_ends_no_event():
    barrier = Barrier(passing=2)
    settings = HttpSettings(keep_alive_seconds=0.03)
    async with (
        serving(scripted_engine(ANSWER, before_step=barrier), settings) as client,
        client.stream("POST", MESSAGES, json=chat_body(stream=True, max_tokens=50), headers=RESUMABLE) as response,
    ):
        received = b""
        async for data in response.aiter_raw():
            received += data
            if received.count(b": keep-alive\n") == 3:
                barrier.open()
    assert b": keep-alive\n: keep-alive\n: keep-alive\nid: " in received
    assert b": keep-alive\n\n" not in received
    assert b"ping" not in received
    parser = EventSourceParser()
    assert numbers(parser.feed(received))
    assert parser.comments == [" keep-alive"] * 3
    assert parser.retry == 1000


def resumable_connection(body, **headers):
    """A connection driven by hand that asks for a resumable stream."""
    connection = Connection(CHAT, body)
    connection.scope["headers"] += [(b"x-limelight-resumable", b"1")]
    connection.scope["headers"] += [(f"x-limelight-{name}".encode(), value) for name, value in headers.items()]
    return connection


async def test_a_reader_that_never_reads_slows_nobody_and_one_that_was_overtaken_is_told():
    settings = HttpSettings(resume_stream_bytes=128 * 1024, resume_memory_bytes=128 * 1024)
    engine = scripted_engine(lambda _: 97)
    app = create_app(engine, settings=settings)
    stuck = resumable_connection(chat_body(stream=True, ignore_eos=True, max_tokens=1000))
    async with engine, anyio.create_task_group() as tasks:

        async def send(message):
            await (stuck.send(message) if message.get("body") else anyio.lowlevel.checkpoint())

        tasks.start_soon(app, stuck.scope, stuck.receive, send)
        await until(lambda: stuck.sent)
        await until(lambda: idle(engine))
        stuck.read_on()
    events = EventSourceParser().feed(b"".join(message["body"] for message in stuck.sent))
    assert numbers(events[:-2]) == list(range(len(events) - 2)), "what it had read was whole"
    assert events[-2].name == "error"
    assert error_in(events[-2])["code"] == "stream_gone"
    assert events[-1].data == "[DONE]"


async def test_a_stream_that_made_room_for_others_before_its_first_frame_went_out_ends_quietly(
    monkeypatch,
):
    made = []

    class Watched(Recordings):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr("limelight.http.serving.Recordings", Watched)
    engine = scripted_engine()
    app = create_app(engine)
    (recordings,) = made
    stuck = resumable_connection(chat_body(stream=True, max_tokens=3))
    async with engine, anyio.create_task_group() as tasks:
        tasks.start_soon(app, stuck.scope, stuck.receive, stuck.send)
        await until(lambda: stuck.sent)  # and not taken: no frame has gone out
        await until(lambda: idle(engine) and recordings._ended)
        recordings.forget(next(iter(recordings._ended)))
        stuck.leave()
    assert (len(recordings), recordings.num_bytes) == (0, 0)


async def test_a_thousand_abandoned_streams_leave_tasks_and_memory_bounded():
    settings = HttpSettings(resume_stream_bytes=128 * 1024, resume_memory_bytes=1024 * 1024)
    engine = scripted_engine(lambda _: 97, num_pages=4000, step_seconds=0.005)
    app = create_app(engine, settings=settings)
    async with engine, client_of(app) as client:
        before, tasks_before = free_pages(engine), len(asyncio.all_tasks())
        ids = []

        async def abandon():
            connection = resumable_connection(ENDLESS, grace=b"0.01")
            connection.read_on()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(app, connection.scope, connection.receive, connection.send)
                await until(lambda: len(connection.sent) > 2)
                connection.leave()
            ids.append(dict(connection.sent[0]["headers"])[b"x-limelight-stream"].decode())

        for _ in range(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(abandon)
        await until(lambda: idle(engine))
        assert free_pages(engine) == before
        await until(lambda: len(asyncio.all_tasks()) == tasks_before)
        assert 0 < kept_bytes() < 1024 * 1024
        assert len(set(ids)) == 1000
        oldest, newest = ids[0], ids[-1]
        assert (await client.delete(f"/v1/streams/{oldest}")).status_code == 410
        assert (await client.delete(f"/v1/streams/{newest}")).status_code == 204


def kept_bytes():
    """Of all frames that are held somewhere."""
    gc.collect()
    return sum(log.num_bytes for log in gc.get_objects() if type(log) is FrameLog)


async def test_pages_of_other_origins_may_resume():
    settings = HttpSettings(cors_origins=("https://chat.example",))
    async with serving(scripted_engine(ANSWER), settings) as client:
        origin = {"origin": "https://chat.example"}
        asked = origin | {
            "access-control-request-method": "DELETE",
            "access-control-request-headers": "x-limelight-resumable,last-event-id",
        }
        allowed = await client.options("/v1/streams/x", headers=asked)
        assert allowed.status_code == 204
        assert "DELETE" in allowed.headers["access-control-allow-methods"]
        answer = await client.post(CHAT, json=chat_body(stream=True), headers=RESUMABLE | origin)
        assert "x-limelight-stream" in answer.headers["access-control-expose-headers"]
        gone = await client.get("/v1/streams/x", headers=origin)
        assert (gone.status_code, gone.headers["access-control-allow-origin"]) == (404, "https://chat.example")


async def test_the_end_of_the_engine_ends_every_reader_with_one_error():
    engine = scripted_engine(step_seconds=0.001)
    async with client_of(create_app(engine)) as client:
        async with engine, client.stream("POST", CHAT, json=ENDLESS, headers=RESUMABLE) as response:
            reading = read_events(response)
            await anext(reading)
            await engine.stop()
            events = [event async for event in reading]
        assert error_in(events[-2])["code"] == "engine_not_running"
        assert events[-1].data == "[DONE]"
        assert isinstance(response, httpx.Response)
