"""Downloads into the cache, from a hub of our own."""

import json
import shutil
from pathlib import Path

import pytest

from limelight.errors import CheckpointError, ModelError
from limelight.models.hub import resolve, resolve_adapter
from limelight.models.hub.download import HubFiles
from limelight.models.hub.names import HubName
from tests.models.hub.conftest import FILES
from tests.models.hub.hub_server import COMMIT, Hub, Reported

WANTED = {
    "config.json", "tokenizer.json", "chat_template.jinja", "additional_chat_templates/tools.jinja", "merges.txt",
    "model.safetensors",
}  # fmt: skip


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

    def test_a_branch_that_moves_meanwhile_gives_the_files_that_were_listed(
        self, tmp_path: Path, hub: Hub, reported: Reported
    ) -> None:
        hub.moved_to = "f" * 40
        folder = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == WANTED
        assert (folder.parent.parent / "refs" / "main").read_text() == folder.name == COMMIT

    @pytest.mark.parametrize(
        "path", ["../../out.gguf", "/tmp/out.gguf", "a//out.gguf", "a\\..\\out.gguf", "C:out.gguf"]
    )
    def test_a_listed_path_that_leads_elsewhere_does_not_count(
        self, tmp_path: Path, hub: Hub, reported: Reported, path: str
    ) -> None:
        hub.files = {path: b"GGUF"}
        files = HubFiles(HubName("maker/model"), None, reported, hub.endpoint, tmp_path / "cache")
        (tmp_path / "preview").mkdir()
        with pytest.raises(CheckpointError, match="neither safetensors nor GGUF"):
            files.preview(tmp_path / "preview")
        with pytest.raises(CheckpointError, match="neither safetensors nor GGUF"):
            files.model()
        assert [*tmp_path.rglob("*")] == [tmp_path / "preview"]

    def test_without_network_the_cache_serves(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        first = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        nowhere = "http://127.0.0.1:9"
        assert resolve("maker/model", None, reported, endpoint=nowhere, cache=tmp_path) == first

    def test_without_network_and_cache_both_are_named(self, tmp_path: Path, reported: Reported) -> None:
        with pytest.raises(
            ModelError, match=r"not complete in the cache \(.*missing: everything.*:9 cannot be reached.*check"
        ):
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

    def test_a_name_that_the_hub_forbids_is_refused(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        with pytest.raises(ModelError, match="'maker/a--b' is not a valid hub id"):
            resolve("maker/a--b", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert hub.asked == []

    def test_a_cache_that_cannot_be_written_is_explained(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ModelError, match=r"downloading maker/model from .* failed"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path / "file")

    def test_a_complete_commit_is_opened_without_any_connection(
        self, tmp_path: Path, hub: Hub, reported: Reported
    ) -> None:
        first = resolve("maker/model", COMMIT, reported, endpoint=hub.endpoint, cache=tmp_path)
        hub.asked.clear()
        assert resolve("maker/model", COMMIT, reported, endpoint=hub.endpoint, cache=tmp_path) == first
        assert hub.asked == []

    def test_a_complete_cache_works_offline_by_any_of_its_names(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for revision in (None, "v1"):
            resolve("maker/model", revision, reported, endpoint=hub.endpoint, cache=tmp_path)
        hub.asked.clear()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        folders = {
            resolve("maker/model", revision, reported, endpoint=hub.endpoint, cache=tmp_path)
            for revision in (None, "main", "v1", COMMIT)
        }
        assert len(folders) == 1
        assert hub.asked == []
        assert (
            reported.sentences[-1] == "offline mode is on (HF_HUB_OFFLINE); using what is in the cache of maker/model"
        )

    @pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
    def test_an_incomplete_cache_is_refused_offline_with_what_is_missing(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch, file: str
    ) -> None:
        (resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path) / file).unlink()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(
            ModelError, match=rf"not complete in the cache \(.*; missing: {file}\) and offline mode is on"
        ):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)

    def test_a_revision_that_was_never_fetched_is_refused_offline(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        for revision in ("v1", "../outside", "f" * 40):
            with pytest.raises(ModelError, match="missing: everything"):
                resolve("maker/model", revision, reported, endpoint=hub.endpoint, cache=tmp_path)

    def test_a_hub_that_is_down_is_replaced_by_the_cache(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        first = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        hub.refusal = (501, "")
        assert resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path) == first
        assert reported.sentences == [f"{hub.endpoint} answers HTTP 501; using what is in the cache of maker/model"]

    def test_a_new_name_of_the_repository_is_told(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        hub.renamed_to = "maker/better-name"
        folder = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        assert reported.sentences == ["maker/model is now called maker/better-name"]

    def test_the_token_goes_to_the_hub_and_nowhere_else(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert hub.tokens == {"Bearer hf_secret"}
        assert hub.cdn_tokens == {None}

    def test_the_login_file_is_used(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "token").write_text("hf_from_login")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path / "cache")
        assert hub.tokens == {"Bearer hf_from_login"}

    def test_a_full_disk_is_found_before_the_download(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=2**20))
        with pytest.raises(ModelError, match=r"needs 2\.0 MiB more on disk, but only 1\.0 MiB is free .*HF_HUB_CACHE"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path / "new" / "cache")
        assert hub.sent_bytes == 0

    def test_pickled_weights_are_refused_before_anything_is_fetched(
        self, tmp_path: Path, hub: Hub, reported: Reported
    ) -> None:
        del hub.files["model.safetensors"], hub.files["model.fp16.safetensors"], hub.files["consolidated.safetensors"]
        with pytest.raises(
            CheckpointError, match=r"has only pickled weights \(pytorch_model\.bin\).*never loaded; look"
        ):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert not any("/resolve/" in asked for asked in hub.asked)

    def test_of_shards_only_those_that_the_index_names_are_fetched(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        index = {"weight_map": dict(zip("ab", shards, strict=True))}
        hub.files |= {name: bytes([number]) * 1_500_000 for number, name in enumerate(shards)}
        hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
        folder = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert sorted(path.name for path in folder.glob("*.safetensors")) == shards
        assert hub.sent_bytes == 3_000_000
        (folder / shards[1]).unlink()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ModelError, match=f"missing: {shards[1]}"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)

    def test_one_file_that_fails_ends_the_others_and_is_the_one_that_is_named(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
        shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        index = {"weight_map": dict(zip("ab", shards, strict=True))}
        hub.files |= {name: bytes([number]) * 1_500_000 for number, name in enumerate(shards)}
        hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
        hub.hold_after = 1_200_000  # the first never ends by itself
        hub.lost = {shards[1]}
        with pytest.raises(ModelError, match="answered HTTP 404 for maker/model"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert not hub.release.is_set()

    def test_the_hub_is_told_who_asks(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert all(agent and agent.startswith("limelight/") for agent in hub.agents)

    @pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/evil.safetensors", "a/../../evil.safetensors"])
    def test_an_index_cannot_lead_out_of_the_repository(
        self, tmp_path: Path, hub: Hub, reported: Reported, name: str
    ) -> None:
        hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
        with pytest.raises(CheckpointError, match=r"must be a \.safetensors file in the same folder"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)


class TestGguf:
    @pytest.fixture(autouse=True)
    def files(self, hub: Hub) -> None:
        hub.files = {
            "README.md": b"",
            "config.json": b"{}",
            "m-Q4_K_M.gguf": b"q4" * 600_000,
            "m-Q8_0.gguf": b"q8" * 900_000,
            "BF16/m-BF16-00001-of-00002.gguf": b"b1" * 600_000,
            "BF16/m-BF16-00002-of-00002.gguf": b"b2" * 600_000,
            "mmproj-m-F16.gguf": b"eyes",
            "m.imatrix.gguf": b"statistics",
        }

    def fetched(self, cache: Path) -> set[str]:
        return {path.name for path in (cache / "models--maker--model" / "snapshots" / COMMIT).rglob("*.*")}

    def test_without_a_choice_it_is_q4_k_m_alone_and_said_so(
        self, tmp_path: Path, hub: Hub, reported: Reported
    ) -> None:
        path = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert path.read_bytes() == hub.files["m-Q4_K_M.gguf"]
        assert self.fetched(tmp_path) == {"m-Q4_K_M.gguf"}
        # Before the download, while there is still time to stop it.
        assert reported.calls[0] == (
            "maker/model has 3 GGUF files: chose Q4_K_M (1.1 MiB); maker/model:QUANT takes another",
            None,
        )
        assert len(reported.sentences) == 1

    def test_parts_are_fetched_whole_and_the_first_is_opened(
        self, tmp_path: Path, hub: Hub, reported: Reported
    ) -> None:
        path = resolve("maker/model:bf16", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert path.name == "m-BF16-00001-of-00002.gguf"
        assert path.with_name("m-BF16-00002-of-00002.gguf").read_bytes() == b"b2" * 600_000
        assert self.fetched(tmp_path) == {"m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf"}

    def test_a_quantisation_that_is_not_there_is_refused_with_those_that_are(
        self, tmp_path: Path, hub: Hub, reported: Reported
    ) -> None:
        with pytest.raises(
            CheckpointError,
            match=r"has no GGUF file 'Q5_K_M'; it has Q4_K_M \(1\.1 MiB\), Q8_0 \(1\.7 MiB\), BF16 \(2\.3 MiB\)$",
        ):
            resolve("maker/model:Q5_K_M", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert hub.sent_bytes == 0

    def test_one_choice_in_the_cache_does_not_stand_for_another_offline(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = resolve("maker/model:Q8_0", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert resolve("maker/model:q8_0", None, reported, endpoint=hub.endpoint, cache=tmp_path) == path
        with pytest.raises(ModelError, match=r"maker/model:Q4_K_M is not complete .*missing: m-Q4_K_M\.gguf"):
            resolve("maker/model:Q4_K_M", None, reported, endpoint=hub.endpoint, cache=tmp_path)


class TestAdapter:
    def test_its_two_files_are_fetched(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        hub.files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"a" * 10, "training.bin": b"x"}
        folder = resolve_adapter("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}

    def test_as_a_model_it_is_refused(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        hub.files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"a" * 10}
        with pytest.raises(CheckpointError, match="maker/model is a LoRA adapter, no whole model; serve the model"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)

    def test_a_model_is_refused_as_an_adapter(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        with pytest.raises(CheckpointError, match=r"maker/model is no LoRA adapter: it has no adapter_config\.json"):
            resolve_adapter("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)

    def test_a_local_folder_is_taken_as_it_is(self, tmp_path: Path, reported: Reported) -> None:
        assert resolve_adapter(str(tmp_path), None, reported) == tmp_path
