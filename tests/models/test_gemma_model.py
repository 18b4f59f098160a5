"""Gemma 3 270M from its real Q4_K_M file (Q4_K, Q5_0, Q6_K, Q8_0 and F32), loaded as an engine loads it, against
transformers with its own reader of GGUF."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from limelight.config import EngineConfig
from limelight.models.checkpoint import open_checkpoint
from limelight.models.gguf.file import GgufFile
from limelight.models.loaded_model import LoadedModel
from limelight.models.loading import load_model
from tests.models.gguf.written_models import finish
from tests.models.greedy import PROMPTS, assert_greedy_tokens

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]
TURN = "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
OWN_PROMPTS = [
    TURN.format("What is the boiling point of water?"),
    TURN.format("Write a haiku about rain."),
    "The quick brown fox jumps over the lazy dog. " * 60,  # longer than the window of 512
]


@pytest.fixture(scope="module")
def loaded(gemma_file: Path, one_torch_thread: None) -> Iterator[LoadedModel]:
    config = EngineConfig(model=str(gemma_file), kv_cache_bytes=2**28, max_model_len=1024, cpu_kernels="reference")
    model = load_model(config, lambda what, fraction: None)
    yield model
    model.executor.close()


@pytest.fixture(scope="module")
def transformers_model(gemma_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Read by transformers from the same blocks.

    The vocabulary is left out: the gguf package, with which transformers reads, needs a minute for it.
    """
    from transformers import AutoModelForCausalLM

    file = GgufFile(gemma_file)
    folder = tmp_path_factory.mktemp("gemma-blocks")
    writer = gguf.GGUFWriter(folder / "blocks.gguf", "gemma3")
    for key, value in file.metadata.items():
        if key.startswith("gemma3."):
            kind = gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.FLOAT32
            writer.add_key_value(key, value, kind)
    writer.add_name("Gemma 3 270M")
    writer.add_vocab_size(file.tensors["token_embd.weight"].shape[0])
    for tensor in file.tensors.values():
        stored = file.stored(tensor.name)
        stored = stored.view(np.float32) if tensor.format.name == "F32" else stored.reshape(*tensor.shape[:-1], -1)
        writer.add_tensor(tensor.name, stored, raw_dtype=gguf.GGMLQuantizationType[tensor.format.name])
    finish(writer)
    yield AutoModelForCausalLM.from_pretrained(folder, gguf_file="blocks.gguf", dtype=torch.float32).eval()
    (folder / "blocks.gguf").unlink()


def test_weights_are_those_that_transformers_reads(gemma_file: Path, transformers_model: Any) -> None:
    checkpoint = open_checkpoint(gemma_file)
    expected = transformers_model.state_dict()
    assert set(checkpoint.names()) == set(expected) - {"lm_head.weight"}
    for name in checkpoint.names():
        # transformers takes away the 1 that the converter adds to the norms.
        theirs = expected[name] + 1 if name.endswith("norm.weight") else expected[name]
        torch.testing.assert_close(checkpoint.tensor(name), theirs, rtol=0, atol=0)


def test_greedy_tokens_are_those_of_transformers(loaded: LoadedModel, transformers_model: Any) -> None:
    assert_greedy_tokens(loaded, transformers_model, PROMPTS + OWN_PROMPTS)


def test_the_model_is_what_its_file_says(loaded: LoadedModel, gemma_file: Path) -> None:
    spec = open_checkpoint(gemma_file).spec
    assert (spec.num_layers, spec.hidden_size, spec.head_dim, spec.num_kv_heads) == (18, 640, 256, 1)
    assert (spec.sliding_window, spec.rope.theta) == (512, 1e6)
    assert spec.sliding_layers == frozenset(range(18)) - {5, 11, 17}
    # End of text and, though the file names no such token, end of turn.
    ends = loaded.vocabulary.encode("<eos><end_of_turn>", add_special_tokens=False)
    assert loaded.eos_token_ids == set(ends)
    assert len(ends) == 2
