"""Folders as they are found in the wild: tied heads, broken downloads, rope settings, padded vocabularies, dtypes.

Other tests have the rest: GGUF files against the folders that they come from in `tests/models/gguf/test_checkpoint.py`
(rows of queries and keys, also with grouped heads), GGUF tokenizers in `tests/models/gguf/test_vocabulary.py`, and what
each broken file is called in `tests/models/test_checkpoint.py`.
"""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from limelight.cli import main
from limelight.config import EngineConfig
from limelight.engine import Engine
from limelight.errors import CheckpointError, UnsupportedModel
from limelight.generation import SamplingParams
from limelight.models.hf_config import read_spec
from limelight.models.loading import load_model
from limelight.models.rope import rope_tables
from tests.models.sequences import Batch
from tests.models.tiny_models import save_byte_tokenizer, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
INDEX = "model.safetensors.index.json"
PROMPT = list(b"Once upon a time")


def save_folder(folder: Path, shard_size: str = "5GB", dtype: torch.dtype = torch.float32, **settings: Any) -> None:
    """A tiny model with a byte tokenizer; its vocabulary has 258 tokens and the model may have more."""
    options = {"vocab_size": 258, "eos_token_id": 256, **settings}
    tiny_llama(**options).to(dtype).save_pretrained(folder, max_shard_size=shard_size)
    save_byte_tokenizer(folder)


def edit_config(folder: Path, **changes: Any) -> None:
    """Set fields of `config.json`; `...` removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def greedy(folder: Path, num_tokens: int = 20, **options: Any) -> tuple[list[int], list[str]]:
    """The most likely tokens after the prompt, and what was reported while loading."""
    reports: list[str] = []
    settings = {"dtype": "float32", **options}
    config = EngineConfig(model=str(folder), device="cpu", kv_cache_bytes=2**20, page_size=8, **settings)
    loaded = load_model(config, lambda what, fraction: reports.append(what))
    batch = Batch(loaded.executor, 8, range(loaded.capacity.num_pages))
    return batch.generate(batch.sit(0, PROMPT), num_tokens), reports


def greedy_in_transformers(folder: Path, num_tokens: int = 20) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(num_tokens):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


# ---- tied and untied heads


def copy_of_the_table(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors[TABLE].clone()


def another_head(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors[TABLE].flip(0).contiguous()


def head_only(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors.pop(TABLE)


def as_saved(tensors: dict[str, torch.Tensor]) -> None:
    pass


TIES: dict[str, tuple[bool, Any, Callable[[dict[str, torch.Tensor]], None]]] = {
    "tied, no head": (True, True, as_saved),
    "tied, an equal head": (True, True, copy_of_the_table),
    "tied, another head": (True, True, another_head),
    "untied": (False, False, as_saved),
    "untied, the flag is absent": (False, ..., as_saved),
    "untied, an equal head": (True, False, copy_of_the_table),
}


@pytest.mark.parametrize("name", TIES)
def test_the_head_is_the_one_that_transformers_uses(name: str, tmp_path: Path) -> None:
    saved_tied, flag, change = TIES[name]
    save_folder(tmp_path, tie_word_embeddings=saved_tied)
    edit_tensors(tmp_path, change)
    edit_config(tmp_path, tie_word_embeddings=flag)
    tokens, reports = greedy(tmp_path)
    assert tokens == greedy_in_transformers(tmp_path)
    assert any("is stored beside an equal" in line for line in reports) == (name == "tied, an equal head")


def test_a_table_that_is_stored_as_the_head_serves_as_both(tmp_path: Path) -> None:
    save_folder(tmp_path, tie_word_embeddings=True)
    expected = greedy_in_transformers(tmp_path)
    edit_tensors(tmp_path, head_only)
    tokens, reports = greedy(tmp_path)
    assert tokens == expected
    assert not any("is stored beside" in line for line in reports)


@pytest.mark.parametrize(
    ("tied", "removed"), [(False, HEAD), (False, TABLE), (True, TABLE)], ids=["untied head", "untied table", "tied"]
)
def test_a_table_or_head_that_is_truly_missing_is_named(tied: bool, removed: str, tmp_path: Path) -> None:
    save_folder(tmp_path, tie_word_embeddings=tied)

    def remove(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[removed]

    edit_tensors(tmp_path, remove)
    with pytest.raises(CheckpointError, match=rf"1 missing: {re.escape(removed)}$"):
        greedy(tmp_path)


# ---- interrupted downloads


def without_a_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    return shard.name


def with_a_truncated_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-1024])
    return shard.name


def with_an_empty_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(b"")
    return shard.name


def with_an_index_of_an_unknown_file(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = "model-00009-of-00009.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    return "model-00009-of-00009.safetensors"


def with_an_index_of_more_tensors(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.layers.2.mlp.up_proj.weight"] = next(iter(index["weight_map"].values()))
    (folder / INDEX).write_text(json.dumps(index))
    return "model.layers.2.mlp.up_proj.weight"


def with_an_index_that_forgets_a_shard(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    gone = index["weight_map"]["model.norm.weight"]
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if shard != gone}
    (folder / INDEX).write_text(json.dumps(index))
    return "model.norm.weight"


@pytest.mark.parametrize(
    "breaks",
    [
        without_a_shard,
        with_a_truncated_shard,
        with_an_empty_shard,
        with_an_index_of_an_unknown_file,
        with_an_index_of_more_tensors,
        with_an_index_that_forgets_a_shard,
    ],
)
def test_a_broken_download_ends_the_server_before_it_listens_or_asks_the_network(
    breaks: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_folder(tmp_path, "40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) >= 3
    broken = breaks(tmp_path)
    touched: list[str] = []
    for method in ("listen", "connect"):
        monkeypatch.setattr(socket.socket, method, lambda *_, method=method: touched.append(method))
    assert main(["serve", str(tmp_path), "--port", "0"]) == 1
    said = capsys.readouterr()
    assert touched == []
    assert broken in said.err.splitlines()[-1]
    assert "Traceback" not in said.err
    assert said.out == ""


# ---- rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}
ROPES: dict[str, dict[str, Any]] = {
    "null": {"rope_scaling": None},
    "default": {"rope_scaling": {"rope_type": "default"}},
    "theta is missing": {"rope_theta": ...},
    "linear, older key": {"rope_scaling": {"type": "linear", "factor": 2}},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "both keys": {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 3.0}},
    "llama3": {"rope_scaling": LLAMA3},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}},
    "yarn, no original": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "newer block": {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}, "rope_theta": ...},
    "newer block, default": {"rope_parameters": {"rope_type": "default", "rope_theta": 250.0}, "rope_theta": ...},
}


@pytest.fixture
def rope_folder(tmp_path: Path) -> Path:
    """A Llama of heads of 64 and 8,192 positions, by its configuration alone."""
    values = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 97,
        "max_position_embeddings": 8192,
        "rope_theta": 20000.0,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    return tmp_path


@pytest.mark.parametrize("name", ROPES)
def test_cos_and_sin_are_those_of_transformers(name: str, rope_folder: Path) -> None:
    edit_config(rope_folder, **ROPES[name])
    spec = read_spec(rope_folder)
    positions = [0, 100, 5000]
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(rope_folder))(torch.zeros(1), torch.tensor([positions]))
    bound = 5001 * 2.0**-24  # the last digit of a frequency below 1, in which torch's powers may err
    for ours, expected in zip(rope_tables(spec.rope, 5001, spec.max_position_embeddings), theirs, strict=True):
        torch.testing.assert_close(torch.from_numpy(ours[positions]), expected[0, :, :32], atol=bound, rtol=0)


@pytest.mark.parametrize(
    ("scaling", "error", "message"),
    [
        ({"rope_type": "quadratic", "factor": 2.0}, UnsupportedModel, "rope type is 'quadratic'; Limelight knows"),
        ({"type": "linear", "factor": 0.5}, CheckpointError, "factor is 0.5; it must be a number from 1"),
    ],
)
def test_rope_settings_that_mean_nothing_are_refused(
    scaling: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    save_folder(tmp_path)
    edit_config(tmp_path, rope_scaling=scaling, rope_parameters=...)
    with pytest.raises(error, match=message):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"), lambda what, fraction: None)


# ---- padded vocabularies


@pytest.mark.anyio
async def test_ids_beyond_the_tokenizer_are_harmless_at_any_temperature(tmp_path: Path) -> None:
    """A fifth of the model's ids have no token; one is even asked for."""
    save_folder(tmp_path, vocab_size=322, max_position_embeddings=2048)
    async with Engine(model=str(tmp_path), device="cpu", kv_cache_bytes=2**23) as engine:
        assert engine.model.vocabulary.size == 258
        assert engine.model.capacity.vocab_size == 322
        wild = SamplingParams(temperature=2, max_tokens=1000, ignore_eos=True, seed=3)
        generation = await engine.generate("Once", wild)
        assert generation.usage.completion_tokens == 1000
        tokens = generation.outputs[0].token_ids
        known = [token for token in tokens if token < 256]
        assert len(known) < 1000, "no padded id was drawn; the test shows nothing"
        assert generation.outputs[0].text == bytes_of(engine, known).decode(errors="replace")

        wanted = SamplingParams(temperature=2, max_tokens=20, ignore_eos=True, logit_bias={300: 100}, logprobs=2)
        generation = await engine.generate("Once", wanted)
        assert set(generation.outputs[0].token_ids) == {300}
        assert generation.outputs[0].text == ""


def bytes_of(engine: Engine, tokens: list[int]) -> bytes:
    return b"".join(engine.model.vocabulary.token_bytes(token) for token in tokens)


# ---- dtypes


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"torch_dtype": "float16", "dtype": ...}, "float16"),
        ({"torch_dtype": "bfloat16", "dtype": ...}, "bfloat16"),
        ({"torch_dtype": "float32", "dtype": ...}, "float32"),
        ({"torch_dtype": ..., "dtype": ...}, "bfloat16"),
        ({"torch_dtype": "auto", "dtype": ...}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_torch_computes_in_float32_on_the_cpu_unless_told_and_a_line_says_so(
    fields: dict[str, Any], meant: str, tmp_path: Path
) -> None:
    save_folder(tmp_path, dtype=torch.bfloat16)
    edit_config(tmp_path, **fields)
    tokens, reports = greedy(tmp_path, 50, dtype="auto", cpu_kernels="reference")
    assert tokens == greedy_in_transformers(tmp_path, 50)
    line = next(line for line in reports if line.startswith("computing in float32"))
    assert line.endswith("as stored" if meant == "float32" else f"the weights are meant for {meant}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_that_is_asked_for_is_used(dtype: str, tmp_path: Path) -> None:
    save_folder(tmp_path)
    tokens, reports = greedy(tmp_path, 5, dtype=dtype, cpu_kernels="reference")
    assert len(tokens) == 5
    assert f"computing in {dtype}, as dtype says; the weights are meant for float32" in reports


@pytest.mark.parametrize(
    ("dtype", "kv", "quantize", "weights"),
    [
        ("auto", "bfloat16", "auto", "as stored"),
        ("float32", "float32", "auto", "as stored"),
        ("float16", "float16", "none", "in float16"),
        ("auto", "bfloat16", "none", "in float32"),
    ],
)
def test_kernels_in_c_compute_in_float32_and_a_line_says_what_is_kept_how(
    dtype: str, kv: str, quantize: str, weights: str, tmp_path: Path
) -> None:
    save_folder(tmp_path, dtype=torch.bfloat16)
    tokens, reports = greedy(tmp_path, 5, dtype=dtype, quantize=quantize)
    assert len(tokens) == 5
    assert f"computing in float32; weights {weights}, keys and values in {kv}" in reports
