"""Between a server and its clients: connections that are kept for reuse, and pages that must be able to read errors.

Cases: B150, B152.
"""

import asyncio
import itertools

import httpx
import pytest

from limelight.cli.listening import bind
from limelight.cli.options import build_parser
from limelight.cli.serve import http_settings
from limelight.cli.server import Server
from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine
from tests.cases.endpoints import ENDPOINTS
from tests.cases.small_engines import Gate, until
from tests.http.wire import CHAT, HI, chat_body, running_server, serving

pytestmark = pytest.mark.anyio

ORIGIN = {"origin": "https://page.example"}
BY_JSON = {"content-type": "application/json"}
FURTHER = {
    "/v1/embeddings": {"model": "scripted", "input": "hi"},
    "/v1/messages/count_tokens": {"model": "scripted", "messages": HI},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}
BODIES = {endpoint.path: endpoint.body for endpoint in ENDPOINTS} | FURTHER
SENT_BY_CLIENTS = "authorization,content-type,x-api-key,anthropic-version,x-stainless-lang,x-limelight-resumable"


# ---- connections that are kept


@pytest.mark.parametrize("given", [None, 300])
def test_connections_are_kept_longer_than_clients_keep_them_and_as_long_as_told(given):
    options = ["serve", "--port", "0"] + ([] if given is None else ["--timeout-keep-alive", str(given)])
    parsed = build_parser({}).parse_args(options)
    with bind("127.0.0.1", 0) as listener:
        server = Server(scripted_engine(), http_settings(parsed), listener, parsed)
    assert server.config.timeout_keep_alive == (given or 120)
    assert server.config.timeout_keep_alive > 90, "Go's clients keep a connection for so long"


async def test_one_connection_serves_any_number_of_requests_whatever_comes_of_them():
    """An answer, a stream and an error may each be followed by the next request."""
    async with scripted_engine("an answer") as engine, running_server(create_app(engine)) as port:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, trust_env=False) as client:
            connections = set()
            asks = [chat_body(), chat_body(stream=True), chat_body(n=0), chat_body(model="nope")]
            for body, _ in itertools.product(asks, range(3)):
                response = await client.post(CHAT, json=body)
                connections.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                await asyncio.sleep(0.01)
    assert len(connections) == 1


# ---- pages of other origins


def readable(response):
    """Whether a page of the origin may read the answer, and our headers, and no shared cache gives it to another."""
    assert response.headers.get("access-control-allow-origin") in (ORIGIN["origin"], "*"), response.headers
    assert "x-request-id" in response.headers["access-control-expose-headers"]
    if response.headers["access-control-allow-origin"] != "*":
        assert "origin" in response.headers["vary"].lower()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("origins", [(ORIGIN["origin"],), ("*",)], ids=["one", "any"])
async def test_a_page_may_read_answers_streams_and_every_kind_of_error(path, origins):
    settings = HttpSettings(cors_origins=origins, api_keys={"a": "key"}, max_body_bytes=10_000)
    body, key = BODIES[path], {"authorization": "Bearer key"}
    async with serving(scripted_engine("ok"), settings) as client:
        asked = [
            (200, {"json": body, "headers": ORIGIN | key}),
            (401, {"json": body, "headers": ORIGIN}),
            (401, {"json": body, "headers": ORIGIN | {"authorization": "Bearer wrong"}}),
            (400, {"content": b"{", "headers": ORIGIN | key | BY_JSON}),
            (400, {"content": b"", "headers": ORIGIN | key | BY_JSON}),
            (413, {"content": b" " * 20_000, "headers": ORIGIN | key | BY_JSON}),
            (415, {"content": b"{}", "headers": ORIGIN | key | {"content-type": "text/plain"}}),
        ]
        if path not in FURTHER:
            asked.append((200, {"json": body | {"stream": True}, "headers": ORIGIN | key}))
        for status, request in asked:
            response = await client.post(path, **request)
            assert response.status_code == status, response.text
            readable(response)
        for method, status in (("GET", 405), ("PUT", 405)):
            response = await client.request(method, path, headers=ORIGIN | key)
            assert response.status_code == status
            readable(response)


async def test_a_page_may_read_what_the_engine_and_the_routes_refuse():
    settings = HttpSettings(cors_origins=(ORIGIN["origin"],))
    gate = Gate()
    engine = scripted_engine("ok", max_num_requests=1, before_step=gate)
    async with serving(engine, settings) as client:
        first = asyncio.create_task(client.post(CHAT, json=chat_body()))
        await until(lambda: engine.statistics().num_requests)
        crowded = await client.post(CHAT, json=chat_body(), headers=ORIGIN)
        gate.open()
        await first
        unknown = await client.post(CHAT, json=chat_body(model="nope"), headers=ORIGIN)
        nowhere = await client.get("/v1/nope", headers=ORIGIN)
    assert [crowded.status_code, unknown.status_code, nowhere.status_code] == [503, 404, 404]
    for response in (crowded, unknown, nowhere):
        readable(response)
    assert "retry-after" in crowded.headers["access-control-expose-headers"]


async def test_an_engine_that_is_not_there_yet_says_so_to_pages_too():
    engine, settings = scripted_engine("ok"), HttpSettings(cors_origins=(ORIGIN["origin"],))
    async with (
        running_server(create_app(engine, settings=settings)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        response = await client.post(CHAT, json=chat_body(), headers=ORIGIN)
    assert response.status_code == 503
    readable(response)


@pytest.mark.parametrize("path", BODIES)
async def test_a_preflight_needs_no_key_and_allows_what_the_official_clients_send(path):
    settings = HttpSettings(cors_origins=(ORIGIN["origin"],), api_keys={"a": "key"})
    asked = {"access-control-request-method": "POST", "access-control-request-headers": SENT_BY_CLIENTS}
    async with serving(scripted_engine("ok"), settings) as client:
        response = await client.options(path, headers=ORIGIN | asked)
        other = await client.options(path, headers={"origin": "https://other.example"} | asked)
    assert response.status_code in (200, 204)
    allowed = response.headers["access-control-allow-headers"].lower()
    assert allowed == "*" or all(name in allowed for name in SENT_BY_CLIENTS.split(","))
    assert "POST" in response.headers["access-control-allow-methods"]
    assert other.headers.get("access-control-allow-origin") is None


async def test_a_page_of_another_origin_is_told_nothing():
    settings = HttpSettings(cors_origins=(ORIGIN["origin"],))
    async with serving(scripted_engine("ok"), settings) as client:
        for body in (chat_body(), chat_body(stream=True), chat_body(n=0)):
            response = await client.post(CHAT, json=body, headers={"origin": "https://other.example"})
            assert "access-control-allow-origin" not in response.headers
