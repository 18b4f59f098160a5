"""`limelight models`: what it says of a model is what loading it would find, without its weights."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from limelight.cli import main
from limelight.models.hub import resolve
from tests.models.gguf.test_checkpoint import hugging_face_tensors, write
from tests.models.hub.hub_server import COMMIT, Hub, Reported, running_hub
from tests.models.tiny_models import tiny_llama

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def one_thread(one_torch_thread: None) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are large against its header, and stored in two files."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_llama(vocab_size=4000, num_hidden_layers=4).save_pretrained(path, max_shard_size="600KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    return path


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    with running_hub({path.name: path.read_bytes() for path in folder.iterdir()}) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def run(hub: Hub, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command against the local hub and an empty cache: exit code, standard output, standard error."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(["models", "--device", "cpu", *arguments])
        out, errors = capsys.readouterr()
        return code, out, errors

    return command


def small_gguf(path: Path, rows: int = 0) -> bytes:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_array("tokenizer.ggml.tokens", ["token"] * rows)

    tensors = hugging_face_tensors()
    half_head = 4
    for name, tensor in tensors.items():
        if name.endswith("q_proj.weight"):
            half_head = tensor.shape[1] // 8
    tensors["rope_freqs.weight"] = np.linspace(1.0, 8.0, half_head, dtype=np.float32)
    return write(path, tensors, change=add).read_bytes()


class TestOne:
    def test_a_folder_that_runs_is_told_with_its_memory(self, run: Run, folder: Path) -> None:
        code, out, _ = run(str(folder))
        assert code == 0
        assert "runs here" in out
        assert "family    Llama" in out
        assert "context   128 tokens" in out
        assert "safetensors float32" in out

    def test_json_has_the_numbers(self, run: Run, folder: Path) -> None:
        code, out, _ = run(str(folder), "--json", "--dtype", "bfloat16")
        told = json.loads(out)["inspection"]
        assert code == 0
        assert told["problem"] is None
        assert (told["dtype"], told["weights_kept"]) == ("float32", "as stored")
        # 4 layers of 2 key-value heads of 8 numbers, keys and values, 2 bytes each.
        assert told["kv_bytes_per_token"] == 4 * 2 * 8 * 2 * 2
        assert [need["num_tokens"] for need in told["lengths"]] == [128]
        need = told["lengths"][0]
        assert need["total_bytes"] == told["weights_bytes"] + need["kv_bytes"] == told["weights_bytes"] + 128 * 256
        assert need["num_at_once"] == 64

    def test_what_does_not_run_is_told_with_the_reason_and_exit_code_1(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 0}')
        code, out, _ = run(str(tmp_path))
        assert code == 1
        assert "does not run: " in out

    def test_it_tells_the_memory_of_weights_that_would_be_made_smaller(self, run: Run, folder: Path) -> None:
        sizes = [
            json.loads(run(str(folder), "--json", "--quantize", kept)[1])["inspection"]["weights_bytes"]
            for kept in ("none", "int8", "int4")
        ]
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) == 3

    def test_a_setting_that_does_not_go_with_the_model_is_its_problem(self, run: Run, folder: Path) -> None:
        code, out, _ = run(str(folder), "--quantize", "int4", "--cpu-kernels", "reference")
        assert code == 1
        assert 'does not run: quantize "int4" needs the kernels in C' in out

    def test_what_is_not_there_is_one_line(self, run: Run) -> None:
        assert run("./nowhere") == (
            1, "", "limelight: ./nowhere does not exist; give an existing model folder, a .gguf file or a hub id\n"
        )  # fmt: skip

    def test_a_revision_of_a_folder_is_refused(self, run: Run, folder: Path) -> None:
        code, _, errors = run(str(folder), "--revision", "main")
        assert code == 2
        assert "is a local path; leave it out" in errors


class TestBeforeADownload:
    def facts(self, run: Run, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = run(*arguments, "--json")
        return code, json.loads(out)

    def without_the_moment(self, told: dict[str, Any]) -> dict[str, Any]:
        """Free memory changes from one second to the next."""
        found: dict[str, Any] = told["inspection"]
        return {key: value for key, value in found.items() if key not in ("memory_plan", "lengths")}

    def test_headers_tell_the_same_as_the_whole_model(
        self, run: Run, hub: Hub, cache: Path, reported: Reported, folder: Path
    ) -> None:
        code, before = self.facts(run, "maker/model")
        assert code == 0
        assert before["path"] is None
        weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        assert weights < before["download_bytes"] < weights + 20_000
        assert list(cache.rglob("*.safetensors")) == []
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=cache)
        hub.asked.clear()
        code, after = self.facts(run, "maker/model")
        assert (code, hub.asked) == (0, [])
        assert after["path"] is not None
        assert self.without_the_moment(after) == self.without_the_moment(before)

    def test_a_gguf_file_is_judged_by_its_header_and_its_rotary_factors(
        self, run: Run, hub: Hub, cache: Path, reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The header is longer than the first piece that is asked for.
        monkeypatch.setattr("limelight.models.hub.preview.GGUF_HEADER_BYTES", (1000, 4000, 2_000_000))
        hub.files = {"m-F32.gguf": small_gguf(tmp_path / "m.gguf", rows=30_000), "m-Q8_0.gguf": b"x"}
        code, before = self.facts(run, "maker/model:F32")
        assert before["inspection"]["problem"] is None
        assert code == 0
        assert before["inspection"]["format"] == "GGUF F32"
        assert not cache.exists()
        resolve("maker/model:F32", None, reported, endpoint=hub.endpoint, cache=cache)
        _, after = self.facts(run, "maker/model:f32")
        assert self.without_the_moment(after) == self.without_the_moment(before)

    def test_only_the_beginning_of_large_files_is_fetched(
        self, run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("limelight.models.hub.preview.FIRST_BYTES", 256)
        code, _ = self.facts(run, "maker/model")
        assert code == 0
        assert 0 < hub.sent_bytes < 20_000

    def test_a_hub_without_ranges_is_read_from_the_beginning(
        self, run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("limelight.models.hub.preview.FIRST_BYTES", 256)
        hub.knows_ranges = False
        assert self.facts(run, "maker/model")[0] == 0

    def test_a_family_that_does_not_run_is_found_before_the_download(self, run: Run, hub: Hub) -> None:
        config = json.loads(hub.files["config.json"]) | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
        hub.files["config.json"] = json.dumps(config).encode()
        code, told = self.facts(run, "maker/model")
        assert code == 1
        assert "mamba" in told["inspection"]["problem"]
        assert "/limelight-" not in told["inspection"]["problem"]  # the folder of the moment is nobody's business

    def test_an_impossible_header_is_refused(self, run: Run, hub: Hub) -> None:
        shard = next(name for name in hub.files if name.endswith("00001-of-00002.safetensors") or "-00001-of" in name)
        hub.files[shard] = (2**62).to_bytes(8, "little") + hub.files[shard][8:]
        code, _, errors = run("maker/model")
        assert code == 1
        assert "claims a header of" in errors

    def test_a_hub_that_refuses_is_one_line(self, run: Run, hub: Hub) -> None:
        hub.gated = True
        code, out, errors = run("maker/model")
        assert (code, out) == (1, "")
        assert "maker/model is gated: ask for access" in errors


class TestList:
    def test_everything_in_the_cache_is_listed_with_what_it_needs(
        self, run: Run, hub: Hub, cache: Path, reported: Reported, tmp_path: Path
    ) -> None:
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=cache)
        code, out, _ = run()
        assert code == 0
        assert "maker/model  (main)\n" in out
        assert ", safetensors float32, Llama\n    runs: " in out

    def test_gguf_files_and_adapters_and_what_does_not_run_have_their_lines(
        self, run: Run, hub: Hub, cache: Path, reported: Reported, tmp_path: Path
    ) -> None:
        hub.files = {"m-F32.gguf": small_gguf(tmp_path / "m.gguf"), "m-Q8_0.gguf": b"broken" * 50_000}
        for name in ("maker/model:F32", "maker/model:Q8_0"):
            resolve(name, COMMIT, reported, endpoint=hub.endpoint, cache=cache)
        other = cache / "models--maker--adapter" / "snapshots" / COMMIT
        other.mkdir(parents=True)
        (other / "adapter_config.json").write_text("{}")
        (other / "adapter_model.safetensors").write_bytes(b"x")
        code, out, _ = run("--json")
        listed = {model["name"]: model for model in json.loads(out)}
        assert code == 0
        assert listed["maker/model:F32"]["inspection"]["problem"] is None
        assert listed["maker/model:F32"]["revision"] == COMMIT[:12]
        assert "not a GGUF file" in listed["maker/model:Q8_0"]["inspection"]["problem"]
        assert listed["maker/adapter"]["is_adapter"]
        text = run()[1]
        assert "runs with the model that it was made for" in text
        assert "does not run: " in text

    def test_an_interrupted_download_is_listed_as_incomplete(
        self, run: Run, hub: Hub, cache: Path, reported: Reported
    ) -> None:
        path = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=cache)
        next(iter(path.glob("*.safetensors"))).unlink()
        assert "the download is incomplete, run it again" in run()[1].replace("\n      ", " ")

    def test_an_empty_cache_says_how_to_fill_it(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("limelight.cli.models.embedded_model", lambda: None)
        code, out, errors = run()
        assert (code, out) == (0, "")
        assert "there is no model in the cache; `limelight serve ORGANISATION/NAME` fetches one" in errors

    def test_a_revision_without_a_model_is_refused(self, run: Run) -> None:
        assert run("--revision", "main")[0] == 2

    def test_a_narrow_terminal_gets_narrow_lines(
        self, run: Run, hub: Hub, cache: Path, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=cache)
        monkeypatch.setenv("COLUMNS", "44")
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        assert max(map(len, run()[1].splitlines())) <= 44

    def test_names_from_outside_cannot_steer_the_terminal(self, run: Run, cache: Path) -> None:
        folder = cache / "models--maker--model" / "snapshots" / COMMIT
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "\x1b[2Jevil"}))
        (folder / "model.safetensors").write_bytes(b"")
        assert "\x1b" not in run()[1]


class TestSupported:
    def test_families_and_formats_are_listed(self, run: Run) -> None:
        code, out, _ = run("--supported")
        assert code == 0
        for word in ("Llama: safetensors: model_type llama; GGUF llama", "Q4_K", "gptq", "llama-bpe"):
            assert word in out

    def test_as_json(self, run: Run) -> None:
        tables = json.loads(run("--supported", "--json")[1])
        assert all(len(row) == len(table["columns"]) for table in tables for row in table["rows"])


def test_the_program_itself_uses_the_settings_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path), "HF_TOKEN": "hf_mine"}
    done = subprocess.run(
        [sys.executable, "-m", "limelight", "models", "maker/model", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "reading the headers of maker/model\n")
    assert json.loads(done.stdout)["inspection"]["problem"] is None
    assert "Bearer hf_mine" in hub.tokens
