"""Well-known models as they describe themselves: read right, of the known size, and with the tensors that they have."""

import copy
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from limelight.kernels.reference import ReferenceKernels
from limelight.models.decoder import parameter_shapes, weights_bytes
from limelight.models.families.registry import family_of
from limelight.models.hf_config import read_sampling_defaults, read_spec
from limelight.models.kv_cache import kv_layout
from limelight.models.memory_plan import plan_memory
from limelight.models.transformers_model.config import read_transformers_config
from limelight.models.transformers_model.probe import probe
from tests.models.families.known_models import KNOWN_MODELS, KnownModel

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NATIVE = [name for name, known in KNOWN_MODELS.items() if known.native]
OTHERS = [name for name, known in KNOWN_MODELS.items() if not known.native]
FEW_LAYERS = 3
ONLY_OF_THE_WHOLE = frozenset({"layer_types", "quantization_config"})
EXPERTS = ".experts."


def written(known: KnownModel, folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(known.config))
    if known.generation:
        (folder / "generation_config.json").write_text(json.dumps(known.generation))
    return folder


@pytest.mark.parametrize("name", NATIVE)
def test_a_known_model_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    known = KNOWN_MODELS[name]
    spec = read_spec(written(known, tmp_path))

    assert (spec.num_kv_heads, spec.head_dim) == (known.kv_heads, known.head_dim)
    assert spec.max_position_embeddings == known.context
    assert spec.longest_context == (known.longest or known.context)
    assert spec.eos_token_ids == known.eos
    assert spec.tie_word_embeddings is known.tied
    assert (spec.rope.theta, str(spec.rope.scaling)) == known.rope
    windows = Counter(spec.window(layer) for layer in range(spec.num_layers))
    assert {window: count for window, count in windows.items() if window is not None} == known.windows
    biases = {"qkv": spec.qkv_bias, "output": spec.output_bias, "mlp": spec.mlp_bias}
    assert {kind for kind, present in biases.items() if present} == known.biases
    assert read_sampling_defaults(tmp_path).temperature == known.generation.get("temperature")


@pytest.mark.parametrize("name", NATIVE)
def test_a_known_model_has_as_many_parameters_as_is_known(name: str, tmp_path: Path) -> None:
    known = KNOWN_MODELS[name]
    spec = read_spec(written(known, tmp_path))
    total = sum(math.prod(shape) for shape in parameter_shapes(spec).values())
    assert total == pytest.approx(known.parameters, rel=1e-3)

    kernels = ReferenceKernels("cpu")
    in_memory = weights_bytes(spec, kernels, "bfloat16")
    page_bytes = kv_layout(spec, 1, 16, "bfloat16").page_bytes
    assert page_bytes == spec.num_layers * 2 * 16 * known.kv_heads * known.head_dim * 2
    plan = plan_memory(
        weights_bytes=in_memory,
        page_bytes=page_bytes,
        page_size=16,
        context_length=spec.max_position_embeddings,
        max_model_len=None,
        kv_cache_bytes=None,
        free_bytes=in_memory + 2**34,
        max_num_seqs=8,
    )
    assert 2048 <= plan.max_model_len <= known.context


@pytest.mark.parametrize("name", NATIVE)
def test_a_known_model_has_the_tensors_that_transformers_gives_it(name: str, tmp_path: Path) -> None:
    config = copy.deepcopy({k: v for k, v in KNOWN_MODELS[name].config.items() if k not in ONLY_OF_THE_WHOLE})
    for part in (config, config.get("text_config", {}), config.get("vision_config", {})):
        if "num_hidden_layers" in part:
            part["num_hidden_layers"] = FEW_LAYERS
    (tmp_path / "config.json").write_text(json.dumps(config))

    ours = {name: shape for name, shape in parameter_shapes(read_spec(tmp_path)).items() if EXPERTS not in name}
    assert ours == shapes_in_transformers(tmp_path)


def shapes_in_transformers(folder: Path) -> dict[str, tuple[int, ...]]:
    """Experts left out: transformers fuses them, and `test_stacked_experts.py` compares them."""
    config = AutoConfig.from_pretrained(folder)
    make = AutoModelForImageTextToText if config.model_type == "gemma3" else AutoModelForCausalLM
    with torch.device("meta"):
        model: Any = make.from_config(config)
    text_name = family_of(config.model_type).text_name or (lambda name: name)
    shapes = {text_name(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return {name: shape for name, shape in shapes.items() if name is not None and EXPERTS not in name}


@pytest.mark.parametrize("name", OTHERS)
def test_a_known_model_without_layers_of_our_own_attends_as_is_known(name: str, tmp_path: Path) -> None:
    known = KNOWN_MODELS[name]
    described = read_transformers_config(written(known, tmp_path))
    attendance = probe(described)
    assert (attendance.num_kv_heads, attendance.head_dim) == (known.kv_heads, known.head_dim)
    assert described.max_position_embeddings == known.context
    assert attendance.num_values == pytest.approx(known.parameters, rel=2e-3)
