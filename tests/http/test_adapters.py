"""Adapters over HTTP: named as models, listed, and loaded by admins only."""

import json
import os
from pathlib import Path

import pytest

from limelight.errors import ConfigError, Forbidden, InvalidRequest, Unauthorized
from limelight.http import HttpSettings
from limelight.http.adapters import adapter_source
from limelight.http.auth import ADMIN, INFER, OBSERVE, Authenticator
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, error_of, streamed

pytestmark = pytest.mark.anyio
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADMIN_KEY = {"authorization": "Bearer root-key"}
USER_KEY = {"authorization": "Bearer user-key"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    adapter = tmp_path / "allowed" / "one"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 4}))
    return str(adapter)


@pytest.fixture
def settings(tmp_path: Path) -> HttpSettings:
    return HttpSettings(
        api_keys={"user": "user-key"}, admin_keys={"root": "root-key"}, adapter_folders=(str(tmp_path / "allowed"),)
    )


def test_only_admin_keys_have_the_admin_scope():
    gate = Authenticator({"user": "user-key"}, {"root": "root-key"})
    assert gate.principal({b"x-api-key": b"user-key"}).scopes == {INFER, OBSERVE}
    assert gate.principal({b"x-api-key": b"root-key"}).scopes == {INFER, OBSERVE, ADMIN}
    for headers in ({}, {b"x-api-key": b"wrong"}):
        with pytest.raises(Unauthorized):
            gate.principal(headers)


def test_with_admin_keys_alone_everybody_else_is_anonymous():
    gate = Authenticator({}, {"root": "root-key"})
    assert gate.principal({}).name == gate.principal({b"x-api-key": b"wrong"}).name == "anonymous"
    assert ADMIN not in gate.principal({}).scopes
    assert ADMIN in gate.principal({b"x-api-key": b"root-key"}).scopes


@pytest.mark.parametrize(
    "options",
    [
        {"admin_keys": {"a": ""}},
        {"admin_keys": {"a": " x"}},
        {"admin_keys": {"a": "k"}, "api_keys": {"b": "k"}},
        {"adapter_folders": ("relative/path",)},
    ],
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(ConfigError):
        HttpSettings(**options)


def test_admin_keys_do_not_show_in_the_settings_repr():
    shown = repr(HttpSettings(admin_keys={"root": "secret-key"}))
    assert "root" in shown
    assert "secret-key" not in shown


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_without_an_admin_key_nobody_may_change_adapters(serve, path):
    for settings in (HttpSettings(), HttpSettings(api_keys={"user": "user-key"})):
        async with serve(settings=settings) as client:
            answer = await client.post(path, json={"lora_name": "x", "lora_path": "/x"}, headers=USER_KEY)
            error = error_of(answer, 403)
            assert "--admin-key" in error["message"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_with_admin_keys_others_may_not(serve, settings, path):
    async with serve(settings=settings) as client:
        body = {"lora_name": "x", "lora_path": "/x"}
        assert error_of(await client.post(path, json=body, headers=USER_KEY), 403)["code"] == "permission_denied"
        error_of(await client.post(path, json=body), 401)


async def test_an_adapter_is_loaded_listed_used_and_unloaded(serve, settings, folder):
    async with serve(settings=settings) as client:
        client.headers.update(ADMIN_KEY)
        error_of(await client.post(CHAT, json=chat_body(model="one")), 404)
        answer = await client.post(LOAD, json={"lora_name": "one", "lora_path": folder})
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'one' added successfully.")
        assert answer.headers["content-type"].startswith("text/plain")

        listed = (await client.get("/v1/models", headers=USER_KEY)).json()["data"]
        assert [(model["id"], model["root"], model["parent"]) for model in listed] == [
            ("scripted", "scripted", None),
            ("one", "one", "scripted"),
        ]
        assert (await client.get("/v1/models/one")).json() == listed[1]

        chats = [
            await client.post(CHAT, json=chat_body(model=model, max_tokens=8, seed=1), headers=USER_KEY)
            for model in ("scripted", "one")
        ]
        assert [answer.json()["model"] for answer in chats] == ["scripted", "one"]
        texts = [answer.json()["choices"][0]["message"]["content"] for answer in chats]
        assert texts[0] != texts[1]
        frames = streamed(await client.post(CHAT, json=chat_body(model="one", max_tokens=8, seed=1, stream=True)))
        assert {frame["model"] for frame in frames} == {"one"}
        assert "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames) == texts[1]
        completion = await client.post(COMPLETIONS, json=completion_body(model="one", max_tokens=8, prompt=["a", "b"]))
        assert completion.json()["model"] == "one"

        answer = await client.post(UNLOAD, json={"lora_name": "one"})
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'one' removed successfully.")
        error_of(await client.post(CHAT, json=chat_body(model="one")), 404)
        error_of(await client.get("/v1/models/one"), 404)
        assert error_of(await client.post(UNLOAD, json={"lora_name": "one"}), 404)["param"] == "lora_name"


async def test_loads_that_cannot_work_are_refused(serve, settings, folder):
    engine = scripted_engine(max_loras=1)
    async with serve(engine, settings) as client:
        client.headers.update(ADMIN_KEY)
        for body, param in (
            ({"lora_name": "one"}, "lora_path"),
            ({"lora_path": folder}, "lora_name"),
            ({"lora_name": "scripted", "lora_path": folder}, "lora_name"),
            ({"lora_name": "", "lora_path": folder}, "lora_name"),
            ({"lora_name": 5, "lora_path": folder}, "lora_name"),
            ({"lora_name": "one", "lora_path": f"{folder}/nothing"}, "lora_path"),
            ({"lora_name": "one", "lora_path": "relative"}, "lora_path"),
            ({"lora_name": "one", "lora_path": folder, "load_inplace": True}, "load_inplace"),
        ):
            assert error_of(await client.post(LOAD, json=body), 400)["param"] == param, body
        assert (await client.post(LOAD, json={"lora_name": "one", "lora_path": folder})).status_code == 200
        error = error_of(await client.post(LOAD, json={"lora_name": "two", "lora_path": folder}), 400)
        assert "max_loras" in error["message"]
        assert [adapter.name for adapter in engine.adapters] == ["one"]


async def test_an_admins_key_says_nothing_of_files_outside_of_the_folders(serve, settings, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    async with serve(settings=settings) as client:
        messages = []
        for path in (
            tmp_path / "secret",
            tmp_path / "absent",
            f"{tmp_path}/allowed/../secret",
            tmp_path / "allowed" / "link",
            "/etc/passwd",
            "/etc/absent",
        ):
            answer = await client.post(LOAD, json={"lora_name": "x", "lora_path": str(path)}, headers=ADMIN_KEY)
            messages.append(error_of(answer, 403)["message"].replace(str(path), "PATH"))
        assert len(set(messages)) == 1


def test_what_a_path_means(tmp_path: Path):
    allowed = (str(tmp_path),)
    (tmp_path / "a").mkdir()
    assert adapter_source("org/name", ()) == "hf://org/name"
    assert adapter_source(f"{tmp_path}/./a", allowed) == os.path.realpath(tmp_path / "a")
    for path in ("a", "../a", "org/name:file", "hf://org/name", "~/a", "", "a/b/c", "./a/b"):
        with pytest.raises(InvalidRequest, match="absolute path or a hub id"):
            adapter_source(path, allowed)
    for path in ("/", f"{tmp_path}\x00", f"{tmp_path}x", f"{tmp_path}/../x", "/" + "a" * 5000):
        with pytest.raises(Forbidden):
            adapter_source(path, allowed)
    with pytest.raises(Forbidden, match="hub id only"):
        adapter_source(str(tmp_path), ())
