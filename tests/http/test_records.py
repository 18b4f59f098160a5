"""`x-record: 1` and `GET /v1/records/{id}`: for admins, and for nobody else."""

import anyio
import anyio.lowlevel
import pytest

from limelight.http import HttpSettings
from limelight.replay.bundle import decode
from limelight.testing import babble, scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, HI

pytestmark = pytest.mark.anyio
KEYS = HttpSettings(api_keys={"ada": "key-of-ada"}, admin_keys={"root": "key-of-root"})
ADMIN = {"authorization": "Bearer key-of-root"}
USER = {"authorization": "Bearer key-of-ada"}
RECORDED = ADMIN | {"x-record": "1"}
BODIES = {
    CHAT: {"model": "scripted", "messages": HI, "max_tokens": 5},
    COMPLETIONS: {"model": "scripted", "prompt": "hi", "max_tokens": 5},
    "/v1/messages": {"model": "scripted", "messages": HI, "max_tokens": 5},
    "/v1/responses": {"model": "scripted", "input": "hi", "max_output_tokens": 16},
}


@pytest.fixture
def recording(serve, tmp_path):
    return lambda: serve(scripted_engine(babble, record_dir=str(tmp_path)), KEYS)


async def fetched(client, name):
    """The bundle, which is written after the answer."""
    with anyio.fail_after(20):
        while (answer := await client.get(f"/v1/records/{name}", headers=ADMIN)).status_code == 404:
            await anyio.lowlevel.checkpoint()
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["cache-control"] == "no-store"
    return decode(answer.content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_every_endpoint_that_generates_can_be_recorded(recording, path, stream):
    async with recording() as client:
        answer = await client.post(path, json=BODIES[path] | {"stream": stream}, headers=RECORDED)
        assert answer.status_code == 200
        bundle = await fetched(client, answer.headers["x-limelight-record"])
    assert len(bundle.choices[0].token_ids) == (16 if path == "/v1/responses" else 5)
    assert bundle.id == answer.headers["x-limelight-record"]


async def test_each_prompt_has_a_bundle_of_its_own(recording):
    async with recording() as client:
        answer = await client.post(COMPLETIONS, json=BODIES[COMPLETIONS] | {"prompt": ["a", "bc"]}, headers=RECORDED)
        names = answer.headers["x-limelight-record"].split(", ")
        bundles = [await fetched(client, name) for name in names]
    assert [len(bundle.prompt_token_ids) for bundle in bundles] == [2, 3]


async def test_nobody_but_an_admin_records_or_reads(recording, tmp_path):
    async with recording() as client:
        for path, body in BODIES.items():
            refused = await client.post(path, json=body, headers=USER | {"x-record": "1"})
            assert refused.status_code == 403
            assert "admin key" in refused.text
            assert "x-limelight-record" not in refused.headers
        name = (await client.post(CHAT, json=BODIES[CHAT], headers=RECORDED)).headers["x-limelight-record"]
        await fetched(client, name)
        assert (await client.get(f"/v1/records/{name}", headers=USER)).status_code == 403
        assert (await client.get(f"/v1/records/{name}")).status_code == 401
    assert len(list(tmp_path.iterdir())) == 1


async def test_without_the_header_nothing_is_recorded(recording, tmp_path):
    async with recording() as client:
        for value in (None, "0", "false"):
            headers = ADMIN if value is None else ADMIN | {"x-record": value}
            answer = await client.post(CHAT, json=BODIES[CHAT], headers=headers)
            assert answer.status_code == 200
            assert "x-limelight-record" not in answer.headers
    assert list(tmp_path.iterdir()) == []


async def test_a_wrong_header_is_refused(recording):
    async with recording() as client:
        refused = await client.post(CHAT, json=BODIES[CHAT], headers=ADMIN | {"x-record": "yes please"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-record"


async def test_a_server_without_a_folder_says_so(serve):
    async with serve(scripted_engine(babble), KEYS) as client:
        for answer in (
            await client.post(CHAT, json=BODIES[CHAT], headers=RECORDED),
            await client.get("/v1/records/rec-1", headers=ADMIN),
        ):
            assert answer.status_code == 400
            assert "--record-dir" in answer.json()["error"]["message"]
            assert "x-limelight-record" not in answer.headers


@pytest.mark.parametrize("name", ["rec-none", "..%2Fsecret", "a" * 200, "%00"])
async def test_what_is_not_there_is_not_found(recording, tmp_path, name):
    (tmp_path.parent / "secret.replay.json").write_text("{}")
    async with recording() as client:
        answer = await client.get(f"/v1/records/{name}", headers=ADMIN)
    assert answer.status_code == 404
