"""The application as a whole: whose engine it is, how it is mounted, and its small routes."""

import logging
import re
import sys
from importlib import resources
from pathlib import Path

import anyio
import pytest
from litestar import Litestar, asgi
from litestar.config.compression import CompressionConfig

from limelight import __version__
from limelight.config import EngineConfig
from limelight.engine import Engine, EngineState
from limelight.http import HttpSettings, create_app
from limelight.http import app as app_module
from limelight.testing import scripted_engine, scripted_model
from tests.http.test_sse import Barrier
from tests.http.wire import CHAT, chat_body, client_of, error_of, frames, streamed

pytestmark = pytest.mark.anyio


async def test_a_given_engine_is_neither_started_nor_stopped():
    engine = scripted_engine()
    async with client_of(create_app(engine)) as client:
        assert engine.state is EngineState.NEW
        error = error_of(await client.post(CHAT, json=chat_body()), 503)
        assert error["code"] == "engine_not_running"
        await engine.start()
        assert (await client.post(CHAT, json=chat_body(max_tokens=1))).status_code == 200
    assert engine.state is EngineState.READY
    await engine.stop()


async def test_a_config_gives_an_engine_that_lives_as_long_as_the_application(monkeypatch):
    made = []

    def make(config):
        made.append(Engine(config, loader=scripted_model("hello")))
        return made[-1]

    class EngineOf(Engine):
        def __new__(cls, config):
            return make(config)

    monkeypatch.setattr(app_module, "Engine", EngineOf)
    async with client_of(create_app(EngineConfig(served_model_name="mine"))) as client:
        assert made[0].state is EngineState.READY
        assert (await client.post(CHAT, json=chat_body(model="mine"))).status_code == 200
    assert made[0].state is EngineState.STOPPED


async def test_the_application_configures_no_logging_and_no_excepthook():
    before = (list(logging.getLogger().handlers), logging.getLogger("litestar").handlers, sys.excepthook)
    create_app(scripted_engine())
    assert before == (list(logging.getLogger().handlers), logging.getLogger("litestar").handlers, sys.excepthook)


async def test_a_bug_is_a_500_without_details_whose_cause_is_in_the_log(serve, caplog):
    secret = "".join(("sec", "ret"))  # not in the source line that a traceback shows

    def break_down(_request):
        raise KeyError(secret)

    engine = scripted_engine()
    engine.open = break_down
    async with serve(engine) as client:
        for stream in (False, True):
            error = error_of(await client.post(CHAT, json=chat_body(stream=stream)), 500)
            assert (error["code"], secret in error["message"]) == ("internal_error", False)
            assert error["request_id"] in caplog.text
    assert "KeyError" in caplog.text
    assert "in break_down" in caplog.text
    assert repr(secret) not in caplog.text, "the message of a bug may quote a prompt"


async def test_health_tells_the_state_of_the_engine():
    barrier = Barrier()
    engine = scripted_engine(before_step=barrier)
    async with client_of(create_app(engine)) as client:

        async def statuses():
            return [(await client.get(path)).status_code for path in ("/livez", "/health", "/readyz")]

        assert await statuses() == [200, 503, 503]
        assert (await client.get("/readyz")).json() == {"status": "new", "reason": "the engine has not been started"}
        await engine.start()
        assert await statuses() == [200, 200, 200]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.post, CHAT)
            async with client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=1)) as response:
                tasks.start_soon(engine.drain, 5)
                while engine.state is not EngineState.DRAINING:
                    await anyio.lowlevel.checkpoint()
                assert await statuses() == [200, 200, 503]
                refused = await client.post(CHAT, json=chat_body())
                assert error_of(refused, 503)["code"] == "overloaded"
                assert refused.headers["retry-after"]
                barrier.open()
                assert frames(await response.aread())
        await engine.stop()
        assert await statuses() == [200, 503, 503]


async def test_version_and_models(serve):
    async with serve(scripted_engine(served_model_name="org/name", max_model_len=128)) as client:
        assert (await client.get("/version")).json() == {"version": __version__}
        [model] = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["owned_by"], model["max_model_len"]) == ("org/name", "limelight", 128)
        assert (await client.get("/v1/models/org/name")).json() == model
        assert (await client.get("/v1/models/org%2Fname")).json() == model
        error_of(await client.get("/v1/models/name"), 404)


async def test_a_good_client_id_is_echoed_and_a_bad_one_replaced(shared_client):
    for given in ("abc-1", "A" * 128, "trace:1/2"):
        answer = await shared_client.get("/v1/nope", headers={"x-request-id": given})
        assert answer.headers["x-request-id"] == given
        assert answer.json()["error"]["request_id"] == given
    for given in ("", "A" * 129, "two words", "a;b", "ü".encode()):
        answer = await shared_client.get("/v1/models", headers={"x-request-id": given})
        assert answer.headers["x-request-id"].startswith("req_")
    answer = await shared_client.post(
        CHAT, json=chat_body(max_tokens=1, request_id="mine"), headers={"x-request-id": "x"}
    )
    assert answer.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("path", ["/llm/v1/chat/completions", "/v1/chat/completions"])
async def test_under_a_root_path_it_does_not_matter_whether_the_proxy_strips_it(serve, path):
    async with serve(settings=HttpSettings(root_path="/llm")) as client:
        assert len(streamed(await client.post(path, json=chat_body(stream=True, max_tokens=2)))) == 4
        assert (await client.get("/llm/")).text.startswith("<!doctype html>")
        away = await client.get("/llm")
        assert (away.status_code, away.headers["location"]) == (307, "llm/")
        assert (await client.get("/llm/ui/app.js")).status_code == 200


async def test_it_streams_when_the_server_itself_knows_the_root_path():
    async with scripted_engine() as engine, client_of(create_app(engine), root_path="/llm") as client:
        assert len(streamed(await client.post(CHAT, json=chat_body(stream=True, max_tokens=2)))) == 4


async def test_mounted_in_an_application_that_compresses_it_streams_token_by_token():
    barrier = Barrier(passing=2)
    async with scripted_engine("abcd", before_step=barrier) as engine:
        inner = create_app(engine)
        host = Litestar(
            [asgi("/llm", is_mount=True, copy_scope=True)(inner)],
            compression_config=CompressionConfig(backend="gzip", exclude=["/llm"]),
            openapi_config=None,
            logging_config=None,
        )
        async with client_of(host) as client:
            body = chat_body(stream=True)
            async with client.stream("POST", "/llm" + CHAT, json=body, headers={"accept-encoding": "gzip"}) as response:
                assert "content-encoding" not in response.headers
                received = b""
                async for data in response.aiter_raw():
                    received += data
                    if received.count(b'"content":"b"') == 1:
                        barrier.open()
    assert len(frames(received)) == 6


UI = Path(str(resources.files("limelight.http") / "ui"))
SCRIPTS = [f"ui/{script.relative_to(UI).as_posix()}" for script in UI.rglob("*.js")]


async def test_the_page_and_its_files_have_strict_headers_and_no_third_party(shared_client):
    types = {
        "": "text/html",
        "ui/style.css": "text/css",
        "ui/app.js": "text/javascript",
        "ui/icon.svg": "image/svg+xml",
        "ui/requests": "text/html",
        "ui/requests.css": "text/css",
        "ui/chat.css": "text/css",
        "ui/sidebar.css": "text/css",
        "ui/markdown.css": "text/css",
    }
    types |= dict.fromkeys(SCRIPTS, "text/javascript")
    for path, media_type in types.items():
        answer = await shared_client.get(f"/{path}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == media_type
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        outside = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert re.search(r"https?://\w", outside) is None
        assert "innerHTML" not in outside
    for missing in (
        "/ui/nope.js",
        "/ui/chat",
        "/ui/chat/",
        "/ui/../app.py",
        "/ui/%2e%2e%2fapp.py",
    ):
        error_of(await shared_client.get(missing), 404)
