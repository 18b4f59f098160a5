"""`/v1/requests`: who may see and end what, what is shown, and the feed."""

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from limelight.engine import Engine
from limelight.generation import SamplingParams
from limelight.http import HttpSettings, create_app
from limelight.http.live import feed as live_feed
from limelight.step import Step
from limelight.telemetry.conventions import EVENT_FIRST_TOKEN
from limelight.telemetry.heartbeat import Sample
from limelight.testing import scripted_engine
from tests.http.conftest import Serve
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, error_of, running_server

pytestmark = pytest.mark.anyio

REQUESTS = "/v1/requests"
FEED = "/v1/requests/events"
SECRET = "the-secret-word"
KEYS = HttpSettings(api_keys={"ada": "key-of-ada", "bob": "key-of-bob"}, admin_keys={"root": "key-of-root"})
VIEW_KEYS = {
    "id",
    "http_request_id",
    "owner",
    "share",
    "model",
    "operation",
    "phase",
    "ending",
    "error_code",
    "arrived_at",
    "queue_position",
    "prompt_tokens",
    "prompt_tokens_done",
    "cached_tokens",
    "output_tokens",
    "pages",
    "page_seconds",
    "step_seconds",
    "step_share",
    "share_wait_seconds",
    "num_preemptions",
    "num_stalls",
    "timings",
    "delivery",
    "trace_id",
    "finish_reasons",
}


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.002)


@asynccontextmanager
async def long_chat(client: httpx.AsyncClient, owner: str = "ada", **fields: Any) -> AsyncIterator[str]:
    """The id of a streamed answer, which goes on for long."""
    body = chat_body(stream=True, max_tokens=1900, **fields)
    async with client.stream("POST", CHAT, json=body, headers=key(owner)) as response:
        lines = response.aiter_lines()
        async for line in lines:
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))["id"]
                break
        await lines.aclose()


class Events:
    """Reads a feed, event by event."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        self._lines = response.aiter_lines()
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def until(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event of this name that meets the condition, told already or to come."""
        while not (found := [told for kind, told in self.told if kind == name and condition(told)]):
            assert await self.next() is not None, "the feed has ended"
        return found[0]

    async def next(self) -> tuple[str, dict[str, Any]] | None:
        """Name and payload; None at the end."""
        name, data = "", []
        async for line in self._lines:
            if not line:
                self.told.append((name, json.loads("\n".join(data))))
                return self.told[-1]
            field, _, value = line.partition(": ")
            assert len(line) < 65536
            if field == "event":
                name = value
            else:
                assert field == "data"
                data.append(value)
        return None

    async def all(self) -> list[tuple[str, dict[str, Any]]]:
        """What is left, to the end."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


@asynccontextmanager
async def feed_of(client: httpx.AsyncClient, **options: Any) -> AsyncIterator[Events]:
    with anyio.fail_after(60):
        async with client.stream("GET", FEED, **options) as response:
            yield Events(response)


@pytest.fixture(autouse=True)
def quick_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is short."""
    monkeypatch.setattr(live_feed, "SECONDS", 0.1)


# ---- what is shown


async def test_the_list_shows_live_requests_and_the_last_ones_and_no_content(serve: Serve) -> None:
    async with serve(scripted_engine(step_seconds=0.001), KEYS) as client:
        message = {"role": "user", "content": SECRET}
        refused = chat_body(messages=[{"role": "user", "content": SECRET * 1000}])
        assert (await client.post(CHAT, json=refused, headers=key("bob"))).status_code == 400
        async with long_chat(client, messages=[message], stop=[SECRET * 2]) as answer_id:
            response = await client.get(REQUESTS, params={"recent": 10}, headers=key("bob"))
            detail = await client.get(f"{REQUESTS}/{answer_id}", headers=key("bob"))
        listed = response.json()
    assert response.status_code == 200
    assert SECRET not in response.text
    assert SECRET not in detail.text
    assert listed["object"] == "list"
    assert listed["engine"].keys() == {
        "num_running",
        "num_waiting",
        "num_seats",
        "num_pages",
        "num_free_pages",
        "num_cached_pages",
        "num_preemptions",
        "num_steps",
        "step_seconds",
    }
    (live,), (ended,) = listed["data"], listed["recent"]
    assert live.keys() == ended.keys() == VIEW_KEYS
    assert (live["id"], live["owner"], live["phase"], live["ending"]) == (answer_id, "ada", "decode", None)
    assert live["delivery"]["num_writes"] >= 1
    assert (ended["owner"], ended["phase"], ended["ending"]) == ("bob", "ended", "invalid")
    assert ended["error_code"] == "context_length_exceeded"


async def test_one_request_is_shown_with_its_spans(serve: Serve) -> None:
    async with serve() as client:
        answer = (await client.post(CHAT, json=chat_body(max_tokens=5))).json()
        detail = (await client.get(f"{REQUESTS}/{answer['id']}")).json()
    assert detail.keys() == VIEW_KEYS | {"spans"}
    assert (detail["ending"], detail["output_tokens"], detail["finish_reasons"]) == ("completed", 5, ["length"])
    spans = {span["key"]: span for span in detail["spans"]}
    assert {"request", "admission", "tokenize", "queue", "prefill", "decode"} <= spans.keys()
    assert spans["request"]["start"] == 0
    assert spans["request"]["end"] == pytest.approx(detail["timings"]["total"])
    assert all(0 <= span["start"] <= span["end"] <= spans["request"]["end"] for span in spans.values())
    assert all(span["parent"] in spans for span in spans.values() if span["key"] != "request")
    assert spans["decode"]["events"][0]["name"] == EVENT_FIRST_TOKEN


async def test_errors_within_a_request_are_told_by_their_codes(serve: Serve) -> None:
    template = "{{ raise_exception('" + SECRET + "') }}"
    async with serve(settings=HttpSettings(trust_request_chat_template=True)) as client:
        await client.post(CHAT, json=chat_body(chat_template=template))
        (view,) = (await client.get(REQUESTS, params={"recent": 1})).json()["recent"]
        detail = await client.get(f"{REQUESTS}/{view['id']}")
        trace = await client.get(f"{REQUESTS}/{view['id']}/trace")
    assert detail.json()["spans"][0]["error"] == "invalid_value"
    assert trace.json()["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["status"]["message"] == "invalid_value"
    assert SECRET not in detail.text + trace.text


async def test_a_trace_is_a_download(serve: Serve) -> None:
    async with serve() as client:
        answer = (await client.post(CHAT, json=chat_body(max_tokens=5))).json()
        response = await client.get(f"{REQUESTS}/{answer['id']}/trace")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-disposition"] == f'attachment; filename="{answer["id"]}.otlp.json"'
    spans = response.json()["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert {"queue", "prefill", "decode"} <= {span["name"] for span in spans}


async def test_requests_are_found_by_the_ids_of_their_answers(serve: Serve) -> None:
    async with serve(scripted_engine("fine")) as client:
        chat = await client.post(CHAT, json=chat_body())
        completion = await client.post(COMPLETIONS, json=completion_body(prompt=["one", "two"]))
        response = await client.post("/v1/responses", json={"model": "scripted", "input": "hi"})
        message = await client.post("/v1/messages", json={"model": "scripted", "messages": HI, "max_tokens": 9})
        answer_ids = [answer.json()["id"] for answer in (chat, completion, response, message)]
        shown = [(await client.get(f"{REQUESTS}/{answer_id}")).json()["id"] for answer_id in answer_ids]
        second = (await client.get(f"{REQUESTS}/{answer_ids[1]}-1")).json()["id"]
    assert shown == [answer_ids[0], f"{answer_ids[1]}-0", *answer_ids[2:]]
    assert second == f"{answer_ids[1]}-1"


@pytest.mark.parametrize("recent", ["-1", "ten", "1e3", "10001", "9" * 5000, "0" * 10 + "9" * 30, "²"])
async def test_an_impossible_number_of_recent_requests_is_refused(
    shared_client: httpx.AsyncClient, recent: str
) -> None:
    error = error_of(await shared_client.get(REQUESTS, params={"recent": recent}), 400)
    assert error["param"] == "recent"
    assert "10000" in error["message"]


async def test_an_engine_that_does_not_run_is_shown_without_numbers() -> None:
    engine = scripted_engine("fine")
    async with (
        running_server(create_app(engine)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        before = (await client.get(REQUESTS)).json()
        async with engine:
            await client.post(CHAT, json=chat_body())
        after = (await client.get(REQUESTS, params={"recent": 5})).json()
    assert (before["engine"], before["data"], before["recent"]) == (None, [], [])
    assert (after["engine"], after["data"], len(after["recent"])) == (None, [], 1)


# ---- who may


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", REQUESTS),
        ("GET", FEED),
        ("GET", f"{REQUESTS}/x"),
        ("GET", f"{REQUESTS}/x/trace"),
        ("DELETE", f"{REQUESTS}/x"),
    ],
)
async def test_no_route_answers_without_a_key_where_there_are_keys(serve: Serve, method: str, path: str) -> None:
    async with serve(settings=KEYS) as client:
        error_of(await client.request(method, path), 401)


async def test_foreign_requests_are_seen_but_not_ended_and_look_like_unknown_ones(serve: Serve) -> None:
    async with serve(scripted_engine(step_seconds=0.001), KEYS) as client:
        async with long_chat(client, "ada") as answer_id:
            foreign = error_of(await client.delete(f"{REQUESTS}/{answer_id}", headers=key("bob")), 404)
            unknown = error_of(await client.delete(f"{REQUESTS}/unknown", headers=key("bob")), 404)
            assert (await client.get(f"{REQUESTS}/{answer_id}", headers=key("bob"))).json()["phase"] == "decode"
        ended = error_of(await client.delete(f"{REQUESTS}/{answer_id}", headers=key("bob")), 404)
    for error, named in ((foreign, answer_id), (unknown, "unknown"), (ended, answer_id)):
        assert error["message"].replace(named, "ID") == unknown["message"].replace("unknown", "ID")
        assert (error["code"], error["param"]) == ("request_not_found", "request_id")


@pytest.mark.parametrize("who", ["ada", "root"])
async def test_ones_own_requests_and_those_of_all_for_an_admin_are_ended_once_and_for_all(
    serve: Serve, who: str
) -> None:
    engine = scripted_engine(step_seconds=0.001)
    async with serve(engine, KEYS) as client:
        body = chat_body(stream=True, max_tokens=1900)
        async with client.stream("POST", CHAT, json=body, headers=key("ada")) as response:
            await until(lambda: any(view.output_tokens > 3 for view in engine.requests()))
            (view,) = engine.requests()
            assert (await client.delete(f"{REQUESTS}/{view.request_id}", headers=key(who))).status_code == 204
            frames = (await response.aread()).decode()
        assert (await client.delete(f"{REQUESTS}/{view.request_id}", headers=key(who))).status_code == 204
        after = (await client.get(f"{REQUESTS}/{view.request_id}", headers=key(who))).json()
    assert "The request was aborted by DELETE" in frames
    assert frames.endswith("data: [DONE]\n\n")
    assert (after["ending"], after["error_code"]) == ("aborted", "request_cancelled")


async def test_aborting_one_of_several_prompts_ends_them_all(serve: Serve) -> None:
    engine = scripted_engine(step_seconds=0.001, max_num_seqs=1)
    async with serve(engine) as client, anyio.create_task_group() as tasks:
        answers: list[httpx.Response] = []

        async def complete() -> None:
            body = completion_body(prompt=["one", "two"], max_tokens=1900)
            answers.append(await client.post(COMPLETIONS, json=body))

        tasks.start_soon(complete)
        await until(lambda: {view.phase for view in engine.requests()} == {"decode", "queued"})
        answer_id = engine.requests()[0].request_id.removesuffix("-0")
        assert (await client.delete(f"{REQUESTS}/{answer_id}")).status_code == 204
        await until(lambda: bool(answers) and not engine.requests())
    assert error_of(answers[0], 499)["code"] == "request_cancelled"


async def test_a_request_that_waits_is_aborted(serve: Serve) -> None:
    held = threading.Event()

    def hold(step: Step) -> None:
        assert held.wait(60)

    engine = scripted_engine("fine", before_step=hold, max_num_seqs=1)
    async with serve(engine) as client, anyio.create_task_group() as tasks:
        statuses: list[int] = []

        async def chat() -> None:
            statuses.append((await client.post(CHAT, json=chat_body())).status_code)

        tasks.start_soon(chat)
        tasks.start_soon(chat)
        await until(lambda: [view.phase for view in engine.requests()] == ["prefill", "queued"])
        for view in engine.requests():
            assert (await client.delete(f"{REQUESTS}/{view.request_id}")).status_code == 204
        await until(lambda: not engine.requests())
        held.set()
    assert statuses == [499, 499]


# ---- the feed


async def test_the_feed_tells_the_past_then_each_second_and_each_end_refused_ones_included(serve: Serve) -> None:
    engine = scripted_engine(step_seconds=0.001, max_num_requests=1)
    async with serve(engine, KEYS) as client:
        engine.telemetry.heartbeat.samples.extend(sample(second) for second in range(600))
        async with feed_of(client, headers=key("bob")) as events:
            history, first = await events.next(), await events.next()
            async with long_chat(client) as answer_id:
                assert (await client.post(CHAT, json=chat_body(), headers=key("ada"))).status_code == 503
                snapshot = await events.until("snapshot", lambda told: told["data"] and told["engine"]["num_running"])
                await events.until("ended", lambda told: told["ending"] == "rejected")
            await events.until("ended", lambda told: told["id"] == answer_id and told["ending"] == "aborted")
    assert history is not None
    assert first is not None
    assert history[0] == "history"
    told = [entry["at"] for entry in history[1]["samples"] if entry["at"] < 600]
    assert told == list(range(600 - len(told), 600))
    assert len(history[1]["samples"]) == 600
    assert (first[0], first[1]["data"]) == ("snapshot", [])
    assert snapshot.keys() == {"object", "now", "engine", "data", "sample"}
    assert snapshot["data"][0].keys() == VIEW_KEYS
    assert snapshot["data"][0]["id"] == answer_id
    assert snapshot["sample"].keys() == set(Sample.__struct_fields__)
    assert snapshot["engine"]["num_running"] == 1


async def test_many_viewers_cost_one_snapshot_a_second(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine(step_seconds=0.001)
    made: list[Any] = []
    ticks: list[int] = []
    take = live_feed.LiveFeed._take

    async def counted(self: live_feed.LiveFeed) -> Any:
        ticks.append(int(anyio.current_time() / live_feed.SECONDS))
        made.append(await take(self))
        return made[-1]

    monkeypatch.setattr(live_feed.LiveFeed, "_take", counted)
    async with serve(engine) as client, anyio.create_task_group() as tasks:
        seen: list[list[float]] = []

        async def watch() -> None:
            async with feed_of(client) as events:
                await events.next()
                seen.append([event[1]["now"] for _ in range(3) if (event := await events.next()) is not None])

        for _ in range(20):
            tasks.start_soon(watch)
    assert len(seen) == 20
    assert {now for times in seen for now in times} <= {snapshot.now for snapshot in made}
    assert len(ticks) <= len(set(ticks)) + 1, "one of them may have begun on the edge of a second"


async def test_snapshots_of_many_requests_stay_below_the_longest_line_of_common_readers(serve: Serve) -> None:
    engine = scripted_engine(step_seconds=0.01, max_num_requests=200)
    async with serve(engine) as client, anyio.create_task_group() as tasks:
        for number in range(150):
            tasks.start_soon(generate, engine, str(number))
        await until(lambda: len(engine.requests()) == 150)
        async with feed_of(client) as events:
            assert (await events.next() or "")[0] == "history"
            event = await events.next()
        tasks.cancel_scope.cancel()
    assert event is not None
    assert [view["id"] for view in event[1]["data"]] == [str(number) for number in range(150)]


async def test_a_client_that_never_reads_holds_one_frame_and_costs_the_others_nothing() -> None:
    """Over bare ASGI: no buffer of a socket takes anything."""
    engine = scripted_engine()
    app = create_app(engine)
    sent: list[dict[str, Any]] = []
    leaves = anyio.Event()

    async def receive() -> dict[str, Any]:
        if not sent:
            return {"type": "http.request", "body": b"", "more_body": False}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if len(sent) > 2:
            await anyio.sleep_forever()

    async with engine, anyio.create_task_group() as tasks:
        tasks.start_soon(app, asgi_scope(), receive, send)
        await until(lambda: len(sent) == 3)
        for number in range(live_feed.MAX_ENDED + 50):
            await engine.generate("hi", SamplingParams(max_tokens=1), request_id=str(number))
        await anyio.sleep(0.3)
        assert len(sent) == 3, "the frame that waits is all there is"
        assert await engine.drain(60), "a feed is no work"
        leaves.set()
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 2]


async def test_a_viewer_that_has_missed_many_ends_is_told_the_newest() -> None:
    async with scripted_engine(recent_requests=1000) as engine:
        feed = live_feed.LiveFeed(engine)
        for number in range(live_feed.MAX_ENDED + 50):
            await engine.generate("hi", SamplingParams(max_tokens=1), request_id=str(number))
        await until(lambda: feed.num_ended == live_feed.MAX_ENDED + 50)
        frames, seen = await feed.news(0)
        again, _ = await feed.news(seen)
    assert seen == live_feed.MAX_ENDED + 50
    ids = [json.loads(line.removeprefix(b"data: "))["id"] for line in frames.splitlines() if b'"ending"' in line]
    assert ids[-live_feed.MAX_ENDED :] == [str(number) for number in range(50, live_feed.MAX_ENDED + 50)]
    assert b"event: ended" not in again


async def test_feeds_end_with_the_engine(serve: Serve) -> None:
    engine = scripted_engine(step_seconds=0.001)
    async with serve(engine, KEYS) as client, feed_of(client, headers=key("bob")) as events:
        async with long_chat(client) as answer_id:
            await events.next()
            await engine.stop()
        left = await events.all()
    assert [event[1]["id"] for event in left if event[0] == "ended"] == [answer_id]
    assert left[-1][0] == "snapshot"
    assert left[-1][1]["data"] == []


async def test_a_drain_does_not_wait_for_feeds_which_end_after_the_last_request(serve: Serve) -> None:
    engine = scripted_engine("a long answer" * 20, step_seconds=0.002)
    async with serve(engine) as client, feed_of(client) as events, anyio.create_task_group() as tasks:
        tasks.start_soon(generate, engine, "last")
        await until(lambda: len(engine.requests()) == 1)
        assert await engine.drain(60)
        left = await events.all()
    assert ("last", "completed") in [(event[1]["id"], event[1]["ending"]) for event in left if event[0] == "ended"]


# ---- helpers


async def generate(engine: Engine, request_id: str) -> None:
    await engine.generate("hi", SamplingParams(max_tokens=1900), request_id=request_id)


def sample(second: int) -> Sample:
    return Sample(
        at=second,
        num_running=0,
        num_waiting=0,
        num_free_pages=0,
        num_cached_pages=0,
        num_tokens=0,
        num_steps=0,
        step_seconds=0.0,
        longest_step_seconds=0.0,
        lag_seconds=0.0,
    )


def asgi_scope() -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": FEED,
        "raw_path": FEED.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
