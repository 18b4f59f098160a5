"""From a configuration to a model that is ready for its first step."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from limelight.config import EngineConfig
from limelight.errors import CheckpointError, ConfigError, OutOfMemory
from limelight.generation import ChatPrompt
from limelight.models import loading
from limelight.models.loaded_model import LoadedModel
from limelight.models.loading import load_model
from limelight.models.precision import choose_dtype
from limelight.models.source import NativeSource
from tests.models.sequences import Batch
from tests.models.tiny_models import c_library, save_byte_tokenizer, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
CPU = "cpu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as the hub serves it: weights, a byte-level tokenizer, a chat template, recommended sampling."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    model = tiny_llama(vocab_size=258, eos_token_id=[256, 257])
    model.generation_config.temperature = 0.25
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}[{{ message.content }}]{% endfor %}")
    return folder


def load(folder: Path, **options: Any) -> LoadedModel:
    settings = {"kv_cache_bytes": 2**20, "page_size": 8, "dtype": "float32", **options}
    return load_model(EngineConfig(model=str(folder), device="cpu", **settings), lambda what, fraction: None)


def test_a_folder_becomes_a_model_that_generates(folder: Path) -> None:
    loaded = load(folder, max_num_seqs=5, max_num_batched_tokens=100)
    assert loaded.name == "tiny-llama"
    assert loaded.capacity.num_seats == 5
    assert loaded.capacity.max_num_batched_tokens == 100
    assert loaded.capacity.max_model_len == 128
    assert loaded.capacity.vocab_size == 258
    assert loaded.capacity.num_pages == 2**20 // (2 * 2 * 8 * 2 * 8 * 4)
    assert loaded.eos_token_ids == {256, 257}
    assert loaded.defaults.temperature == 0.25
    assert loaded.chat_format.render(ChatPrompt(messages=({"role": "user", "content": "hi"},))) == "[hi]"
    assert "KV cache" in loaded.memory_plan

    prompt = loaded.vocabulary.encode("seven bytes", add_special_tokens=True)
    batch = Batch(loaded.executor, 8, range(loaded.capacity.num_pages))
    sequence = batch.sit(0, prompt)
    batch.generate(sequence, 12)
    with torch.inference_mode():
        expected = tiny_llama(vocab_size=258)(torch.tensor([sequence.tokens[:-1]])).logits[0, len(prompt) - 1 :]
    assert sequence.output == expected.argmax(-1).tolist()


def test_the_end_token_of_the_tokenizer_ends_a_text_too(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**settings, "eos_token_id": 256}))
    assert load(copy).eos_token_ids == {256}
    (copy / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<stop>"}))
    assert load(copy).eos_token_ids == {256, 257}


def test_a_sequence_may_fill_the_whole_context(folder: Path) -> None:
    loaded = load(folder, max_model_len=37)
    batch = Batch(loaded.executor, 8, range(loaded.capacity.num_pages))
    sequence = batch.sit(4, list(range(30)))
    assert len(batch.generate(sequence, 7)) == 7


def test_progress_rises_to_one(folder: Path) -> None:
    reports: list[tuple[str, float | None]] = []
    config = EngineConfig(model=str(folder), device="cpu", kv_cache_bytes=2**20)
    load_model(config, lambda what, fraction: reports.append((what, fraction)))
    fractions = [fraction for what, fraction in reports if what == "loading weights" and fraction is not None]
    assert fractions == sorted(fractions)
    assert len(fractions) == 3
    assert fractions[-1] == 1.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_run(folder: Path, dtype: str) -> None:
    loaded = load(folder, dtype=dtype)
    assert loaded.capacity.num_pages == 2**20 // (2 * 2 * 8 * 2 * 8 * 2)
    batch = Batch(loaded.executor, 8, range(loaded.capacity.num_pages))
    assert len(batch.generate(batch.sit(0, [1, 2, 3]), 4)) == 4


def test_quantised_weights_take_less_memory_and_generate(folder: Path) -> None:
    sizes = []
    reports: list[str] = []
    for setting in ("none", "int8", "int4"):
        config = EngineConfig(model=str(folder), device="cpu", kv_cache_bytes=2**20, quantize=setting)
        loaded = load_model(config, lambda what, fraction: reports.append(what))
        batch = Batch(loaded.executor, 16, range(loaded.capacity.num_pages))
        assert len(batch.generate(batch.sit(0, [1, 2, 3]), 4)) == 4
        kept = {"none": "in float32", "int8": "in Q8_0", "int4": "in Q4_1"}[setting]
        assert f"computing in float32; weights {kept}, keys and values in bfloat16" in reports
        line = next(line for line in loaded.memory_plan.splitlines() if line.startswith("weights"))
        sizes.append(float(line.split()[1]))
        loaded.executor.close()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 3 * sizes[1]


def test_a_context_longer_than_the_models_positions_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_model_len is 129, .* positions end at 128; use at most 128"):
        load(folder, max_model_len=129)


def test_a_pool_that_cannot_hold_a_page_is_refused(folder: Path) -> None:
    with pytest.raises(OutOfMemory, match="kv_cache_bytes"):
        load(folder, kv_cache_bytes=100)


@pytest.mark.parametrize("what", ["allocate_kv_cache", "RecordedStepExecutor", "warm_up"])
def test_memory_that_the_system_does_not_give_is_an_error_of_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if c_library() is None:
        pytest.skip("there is no C compiler")

    def refuse(*_: Any, **__: Any) -> None:
        raise MemoryError("900 threads cannot be started; set a smaller num_threads")

    monkeypatch.setattr(loading, what, refuse)
    with pytest.raises(OutOfMemory, match=r"900 threads.*set a smaller num_threads"):
        load(folder)


def test_tensors_that_do_not_fit_the_configuration_are_named(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"intermediate_size": 48', '"intermediate_size": 40'))
    with pytest.raises(CheckpointError, match=r"gate_proj\.weight is \[48, 32\], expected \[40, 32\]"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "cuda", "bfloat16"),
        ("float16", "cpu", "float16"),
        ("float32", "cuda", "float32"),
    ],
)
def test_dtypes_follow_the_setting_then_the_device(name: str, device: str, expected: str) -> None:
    assert choose_dtype(name, "bfloat16", device) == expected


def test_a_gpu_whose_memory_is_used_up_by_the_weights_is_an_error_of_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(NativeSource, "load", refuse)
    with pytest.raises(OutOfMemory, match=r"Tried to allocate 2\.00 GiB.*; set quantize to .fp8. or .int4., or free"):
        load(folder)
