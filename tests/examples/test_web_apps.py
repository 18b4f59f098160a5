"""The applications of FastAPI and Litestar: their own routes, the mount, refusals, and readers who leave."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from examples import fastapi_app, litestar_app
from limelight.telemetry.timeline import Ending
from limelight.testing import echo, scripted_engine
from tests.http.wire import HI, client_of, streamed

pytestmark = pytest.mark.anyio

APPS = pytest.mark.parametrize(
    "create_app", [fastapi_app.create_app, litestar_app.create_app], ids=["fastapi", "litestar"]
)


@asynccontextmanager
async def running(create_app, engine):
    async with client_of(create_app(engine)) as client:
        yield client


def events(body):
    """Type and data of each server-sent event."""
    for block in body.replace("\r\n", "\n").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        yield fields.get("event"), json.loads(fields["data"])


@APPS
async def test_an_answer_comes_whole_and_as_events(create_app):
    async with running(create_app, scripted_engine("Grüße, 東京!")) as client:
        title = await client.get("/title", params={"text": "A cat."})
        story = await client.get("/story", params={"about": "the sea"})
    assert title.json() == {"title": "Grüße, 東京!"}
    assert story.headers["content-type"].startswith("text/event-stream")
    *pieces, end = events(story.text)
    assert "".join(data["text"] for _, data in pieces) == "Grüße, 東京!"
    assert {kind for kind, _ in pieces} == {None}
    assert end == ("end", {})


@APPS
async def test_openais_api_is_below_the_mount_and_shares_the_engine(create_app):
    engine = scripted_engine(echo)
    async with running(create_app, engine) as client:
        models = (await client.get("/llm/v1/models")).json()
        body = {"model": models["data"][0]["id"], "messages": HI, "stream": True}
        chunks = streamed(await client.post("/llm/v1/chat/completions", json=body))
        await client.get("/title", params={"text": "A cat."})
        assert len(engine.requests(recent=10)) == 2
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "user: hi\nassistant:"


@APPS
async def test_what_the_engine_refuses_is_told_before_a_stream_and_within_one(create_app):
    async with running(create_app, scripted_engine(echo, max_model_len=100)) as client:
        title = await client.get("/title", params={"text": "x" * 200})
        story = await client.get("/story", params={"about": "x" * 200})
    assert title.status_code == 400
    ((kind, data),) = events(story.text)
    assert kind == "error"
    assert "100" in data["detail"]
    assert "100" in title.json()["detail"]


@APPS
async def test_a_reader_who_leaves_ends_the_request(create_app):
    engine = scripted_engine(step_seconds=0.01)
    async with running(create_app, engine) as client:
        async with client.stream("GET", "/story", params={"about": "the sea"}) as response:
            async for _ in response.aiter_lines():
                break
        with anyio.fail_after(30):
            while engine.requests():
                await anyio.sleep(0.01)
        (request,) = engine.requests(recent=1)
    assert request.ending is Ending.ABORTED
    assert request.output_tokens < 200


@APPS
async def test_the_application_starts_and_stops_the_engine(create_app):
    engine = scripted_engine("yes")
    async with running(create_app, engine):
        assert engine.model_name == "scripted"
    assert engine.state.name == "STOPPED"
