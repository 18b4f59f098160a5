"""What each key may do, on every route, and what its requests may ask for."""

import anyio
import httpx
import openai
import pytest

from limelight.generation import SamplingParams
from limelight.http import HttpSettings, create_app
from limelight.http.app import create_metrics_app
from limelight.http.keys.key_file import KeyEntry, KeyFile, digest_of, write_keys
from limelight.testing import Answers, Hang, scripted_engine
from tests.http.test_disconnect import until
from tests.http.wire import CHAT, HI, chat_body, client_of, error_of, serving

pytestmark = pytest.mark.anyio

PUBLIC = {
    "/", "/ui/requests", "/ui/{name:path}", "/health", "/livez", "/readyz", "/ping", "/docs", "/openapi.json",
    "/schema/openapi.json",
}  # fmt: skip
SCOPES = {"infer": ("infer",), "observe": ("observe",), "admin": ("admin",), "all": ("infer", "observe", "admin")}
NEEDED = {
    "/metrics": "observe",
    "/v1/requests": "observe",
    "/v1/requests/events": "observe",
    "/v1/requests/{request_id:str}": "observe",
    "/v1/requests/{request_id:str}/trace": "observe",
    "/v1/load_lora_adapter": "admin",
    "/v1/records/{record_id:str}": "admin",
    "/v1/unload_lora_adapter": "admin",
}
"""Path -> scope, of GET routes and those that change what is served; everything else needs `infer`."""


@pytest.fixture
def settings(tmp_path):
    """A key named after its scopes for each of `SCOPES`, and some with limits."""
    entries = [KeyEntry(name=name, sha256=digest_of(name), scopes=scopes) for name, scopes in SCOPES.items()]
    entries += [
        KeyEntry(name="one", sha256=digest_of("one"), max_num_requests=1),
        KeyEntry(name="other", sha256=digest_of("other"), models=("other",)),
        KeyEntry(name="late", sha256=digest_of("late"), best_priority=0),
        KeyEntry(name="private", sha256=digest_of("private"), private_cache=True),
    ]
    path = tmp_path / "keys.json"
    write_keys(path, KeyFile(keys=tuple(entries)))
    return HttpSettings(key_file=str(path))


def of(name):
    return {"authorization": f"Bearer {name}"}


def concrete(path):
    path = path.replace("{name:path}", "app.js").replace("{model_id:path}", "none")
    for name in ("request", "stream", "response", "record"):
        path = path.replace(f"{{{name}_id:str}}", "none")
    return path


@pytest.mark.parametrize("root_path", ["", "/llm"])
async def test_every_route_of_the_table_lets_in_exactly_those_who_may(settings, root_path, tmp_path):
    settings = HttpSettings(key_file=settings.key_file, root_path=root_path)
    engine = scripted_engine()
    seen = set()
    async with serving(engine, settings) as client:
        for route in create_app(engine, settings=settings).routes:
            path = route.path.removeprefix(root_path) or "/"
            for method in route.methods - {"OPTIONS"}:
                scope = "infer" if method == "DELETE" else NEEDED.get(path, "infer")
                seen.add(path)
                assert "{" not in concrete(path), path
                for name in (None, "all") if root_path else (None, "unknown", *SCOPES):
                    if path == "/v1/requests/events" and name in ("observe", "all"):
                        continue  # a feed without an end
                    headers = {} if name is None else of(name)
                    answer = await client.request(method, concrete(route.path), headers=headers)
                    where = (method, route.path, name, answer.status_code)
                    if path in PUBLIC:
                        assert answer.status_code == (307 if route.path == "/llm" else 200), where  # to /llm/
                    elif name in (None, "unknown"):
                        assert answer.status_code == 401, where
                    elif scope in SCOPES[name]:
                        assert answer.status_code not in (401, 403), where
                    else:
                        assert answer.status_code == 403, where
                        assert answer.json()["error"]["type"] == "permission_error"
    assert seen >= PUBLIC | NEEDED.keys()
    assert len(seen) > 25


async def test_preflights_need_no_key(settings):
    settings = HttpSettings(key_file=settings.key_file, cors_origins=("https://chat.example",))
    async with serving(scripted_engine(), settings) as client:
        headers = {"origin": "https://chat.example", "access-control-request-method": "POST"}
        assert (await client.options(CHAT, headers=headers)).status_code == 204


async def test_probes_give_reasons_to_observers_alone(settings):
    engine = scripted_engine()
    async with client_of(create_app(engine, settings=settings)) as client:
        for path in ("/readyz", "/health", "/ping"):
            for name, told in ((None, False), ("unknown", False), ("infer", False), ("observe", True)):
                answer = await client.get(path, headers={} if name is None else of(name))
                assert answer.status_code == 503
                assert answer.json()["status"] == "new"
                assert (answer.json()["reason"] is not None) is told


async def test_who_has_as_many_requests_as_it_may_gets_429_and_others_go_on(settings):
    hang = Hang()
    engine = scripted_engine(Answers({"hold": ["a", hang, "b"]}, otherwise="fine"))
    async with serving(engine, settings) as client:
        body = chat_body(messages=[{"role": "user", "content": "hold"}], stream=True)
        async with client.stream("POST", CHAT, json=body, headers=of("one")) as running:
            chunks = running.aiter_raw()  # kept: the connection ends with it
            await anext(chunks)
            refused = await client.post(CHAT, json=chat_body(), headers=of("one"))
            error = error_of(refused, 429)
            assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
            assert "'one' has 1 live requests and may have 1" in error["message"]
            assert int(refused.headers["retry-after"]) >= 1
            anthropic = await client.post("/v1/messages", json=chat_body(max_tokens=5), headers={"x-api-key": "one"})
            assert anthropic.status_code == 429
            assert anthropic.json()["error"]["type"] == "rate_limit_error"
            hang.release()
            assert (await client.post(CHAT, json=chat_body(), headers=of("infer"))).status_code == 200
        await until(lambda: engine.statistics().num_requests == 0)
        base = f"{client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="one", max_retries=0) as official:
            assert (
                await official.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "x"}])
            ).id


async def test_the_official_client_tries_again_by_itself_and_succeeds(settings):
    engine = scripted_engine("x" * 30, step_seconds=0.01)
    async with serving(engine, settings) as client:
        base = f"{client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="one", max_retries=20) as official:

            async def ask():
                return await official.chat.completions.create(model="scripted", messages=HI)

            answers = []

            async def one():
                answers.append((await ask()).choices[0].message.content)

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(one)
    assert answers == ["x" * 30] * 3


async def test_a_key_sees_and_uses_only_the_models_that_it_may(settings, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    engine = scripted_engine("fine")
    async with serving(engine, settings) as client:
        await engine.load_adapter("other", str(tmp_path))
        for name, models in (("infer", ["scripted", "other"]), ("other", ["other"])):
            listed = (await client.get("/v1/models", headers=of(name))).json()["data"]
            assert [model["id"] for model in listed] == models
        assert (await client.get("/v1/models/scripted", headers=of("other"))).status_code == 404
        assert (await client.get("/v1/models/other", headers=of("other"))).status_code == 200
        assert (await client.post(CHAT, json=chat_body(model="other"), headers=of("other"))).status_code == 200
        for path, body in (
            (CHAT, chat_body()),
            ("/v1/completions", {"model": "scripted", "prompt": "x"}),
            ("/v1/responses", {"model": "scripted", "input": "x"}),
            ("/v1/messages", chat_body(max_tokens=3)),
            ("/v1/messages/count_tokens", chat_body()),
            ("/v1/embeddings", {"model": "scripted", "input": "x"}),
            ("/tokenize", {"model": "scripted", "prompt": "x"}),
        ):
            answer = await client.post(path, json=body, headers=of("other"))
            assert answer.status_code == 404, path
        error = error_of(await client.post(CHAT, json=chat_body(model="none"), headers=of("other")), 404)
        assert "scripted" not in error["message"]


async def test_a_priority_beyond_the_ceiling_is_refused(settings):
    async with serving(scripted_engine("fine"), settings) as client:
        for priority, status in ((-1, 403), (0, 200), (5, 200)):
            answer = await client.post(CHAT, json=chat_body(priority=priority), headers=of("late"))
            assert answer.status_code == status
        assert (await client.post(CHAT, json=chat_body(priority=-9), headers=of("infer"))).status_code == 200


@pytest.mark.parametrize("everybody", [False, True])
async def test_private_caches_are_shared_with_nobody_else(settings, everybody):
    settings = HttpSettings(key_file=settings.key_file, private_caches=everybody)
    async with serving(scripted_engine("fine"), settings) as client:

        async def cached(name, **fields):
            body = {"model": "scripted", "prompt": "a long prompt " * 20, "max_tokens": 1, **fields}
            answer = await client.post("/v1/completions", json=body, headers=of(name))
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

        assert not await cached("private")
        assert await cached("private")
        assert not await cached("private", cache_salt="own")
        assert await cached("private", cache_salt="own")
        for forged in ("private 7 private", "private 7 privateown", "7 private"):
            assert not await cached("infer", cache_salt=forged)
        assert not await cached("infer")
        assert await cached("all") is not everybody


async def test_metrics_have_a_port_of_their_own_without_keys():
    engine = scripted_engine("fine")
    async with engine, client_of(create_metrics_app(engine)) as client:
        await engine.generate("x", SamplingParams(max_tokens=2))
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert "limelight_requests_total" in answer.text
        for path in ("/", CHAT, "/v1/models", "/v1/requests"):
            assert (await client.request("POST" if path == CHAT else "GET", path)).status_code == 404


async def test_a_key_that_is_no_text_is_refused_and_not_a_fault(settings):
    async with serving(scripted_engine(), settings) as client:
        for value in (b"Bearer caf\xe9", b"Bearer", b"Bearer \xff", b"Basic x", b"Bearer " + b"k" * 30_000):
            request = httpx.Request("GET", f"{client.base_url}/v1/models", headers=[(b"authorization", value)])
            assert (await client.send(request)).status_code == 401
