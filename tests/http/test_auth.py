"""Who gets in: keys, host names, and pages of other origins."""

import pytest

from limelight.errors import ConfigError, Unauthorized
from limelight.http import HttpSettings, create_app
from limelight.http.auth import Authenticator, host_name
from limelight.http.keys.principal import ANONYMOUS
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, chat_body, error_of

KEYS = {"alice": "key-a", "bob": "key-b"}
PUBLIC = {
    "/",
    "/ui/requests",
    "/ui/{name:path}",
    "/health",
    "/livez",
    "/readyz",
    "/ping",
    "/docs",
    "/openapi.json",
    "/schema/openapi.json",
}


def test_without_keys_everybody_is_anonymous():
    assert Authenticator({}).principal({b"authorization": b"Bearer anything"}) == ANONYMOUS


@pytest.mark.parametrize(
    "headers",
    [{b"authorization": b"Bearer key-b"}, {b"authorization": b"bearer  key-b "}, {b"x-api-key": b"key-b"}],
)
def test_a_key_names_its_principal(headers):
    assert Authenticator(KEYS).principal(headers).name == "bob"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"Bearer "},
        {b"authorization": b"Basic key-a"},
        {b"authorization": b"key-a"},
        {b"authorization": b"Bearer key-"},
        {b"authorization": b"Bearer \xff\xfe"},
        {b"x-api-key": b""},
        {b"x-api-key": b"KEY-A"},
    ],
)
def test_no_key_and_a_wrong_key_are_unauthorized(headers):
    with pytest.raises(Unauthorized):
        Authenticator(KEYS).principal(headers)


def test_keys_do_not_show_in_the_settings_repr():
    shown = repr(HttpSettings(api_keys=KEYS))
    assert "alice" in shown
    assert "key-a" not in shown


@pytest.mark.parametrize(
    "options",
    [
        {"api_keys": {"a": ""}},
        {"api_keys": {"a": " x"}},
        {"api_keys": {"a": "schlüssel"}},
        {"max_body_bytes": 0},
        {"unknown_fields": "maybe"},
        {"header_wait_seconds": -1},
        {"keep_alive_seconds": 0},
        {"resume_stream_bytes": 1000},
        {"resume_memory_bytes": 2**20},
        {"resume_keep_seconds": 0},
        {"max_grace_seconds": -1},
        {"max_grace_seconds": float("nan")},
        {"root_path": "llm"},
        {"root_path": "/llm/"},
    ],
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(ConfigError):
        HttpSettings(**options)


@pytest.mark.parametrize(
    ("header", "name"),
    [("localhost:8000", "localhost"), ("LOCALHOST", "localhost"), ("[::1]:8000", "::1"), ("[::1]", "::1"), ("", "")],
)
def test_host_names_lose_their_port(header, name):
    assert host_name(header) == name


@pytest.mark.parametrize("name", ["half a pair \ud800", "x" * 301])
@pytest.mark.parametrize("kind", ["api_keys", "admin_keys"])
def test_names_of_keys_can_be_shown(kind, name):
    with pytest.raises(ConfigError, match="choose another"):
        HttpSettings(**{kind: {name: "key"}})
    HttpSettings(**{kind: {'n"a\nme \u00fc': "key"}})


@pytest.mark.anyio
async def test_every_route_but_the_public_ones_needs_a_key(serve):
    engine = scripted_engine()
    settings = HttpSettings(api_keys=KEYS)
    routes = create_app(engine, settings=settings).routes
    assert {route.path for route in routes} > PUBLIC
    async with serve(engine, settings) as client:
        for route in routes:
            for method in route.methods - {"OPTIONS"}:
                path = route.path.replace("{name:path}", "app.js").replace("{model_id:path}", "scripted")
                answer = await client.request(method, path)
                if route.path in PUBLIC:
                    assert answer.status_code == 200, path
                else:
                    assert answer.status_code == 401, path
                    assert "error" in answer.json()
                    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.anyio
async def test_a_request_with_a_key_is_accounted_to_its_principal(serve):
    engine = scripted_engine()
    owners = []
    admit = engine.open

    def open_noting_the_owner(request):
        owners.append(request.owner)
        return admit(request)

    engine.open = open_noting_the_owner
    async with serve(engine, HttpSettings(api_keys=KEYS)) as client:
        for headers in ({"authorization": "Bearer key-a"}, {"x-api-key": "key-b"}):
            answer = await client.post(CHAT, json=chat_body(max_tokens=1), headers=headers)
            assert answer.status_code == 200
    assert owners == ["alice", "bob"]


@pytest.mark.anyio
async def test_a_host_that_is_not_listed_is_refused_on_every_route(serve):
    async with serve(settings=HttpSettings(allowed_hosts=("127.0.0.1", "localhost", "::1"))) as client:
        for host in ("127.0.0.1:80", "LocalHost", "[::1]:9"):
            assert (await client.get("/v1/models", headers={"host": host})).status_code == 200
        for path in ("/v1/models", "/", "/health"):
            error = error_of(await client.get(path, headers={"host": "evil.example:80"}), 403)
            assert "evil.example" in error["message"]


@pytest.mark.anyio
async def test_cors_is_off_by_default(serve):
    async with serve() as client:
        answer = await client.get("/v1/models", headers={"origin": "https://chat.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.anyio
async def test_pages_of_an_allowed_origin_can_read_every_answer_errors_and_streams_included(serve):
    settings = HttpSettings(cors_origins=("https://chat.example",), api_keys=KEYS, max_body_bytes=2000)
    page = {"origin": "https://chat.example"}
    key = page | {"authorization": "Bearer key-a"}
    async with serve(settings=settings) as client:
        answers = {
            401: await client.post(CHAT, json=chat_body(), headers=page),
            400: await client.post(CHAT, content="{", headers=key | {"content-type": "application/json"}),
            404: await client.get("/nope", headers=key),
            405: await client.get(CHAT, headers=key),
            413: await client.post(CHAT, content="x" * 2001, headers=key | {"content-type": "application/json"}),
            200: await client.post(CHAT, json=chat_body(stream=True, max_tokens=1), headers=key),
        }
        for status, answer in answers.items():
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        preflight = await client.options(
            CHAT,
            headers=page
            | {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"},
        )
        assert preflight.status_code == 204
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        stranger = await client.get("/v1/models", headers=key | {"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers
