"""Whose layers run a model."""

from pathlib import Path

import pytest
import torch

from limelight.errors import CheckpointError, ConfigError, UnsupportedModel
from limelight.kernels.reference import ReferenceKernels
from limelight.models.precision import Precision
from limelight.models.source import NativeSource, open_source
from limelight.models.transformers_model.source import TransformersSource
from tests.models.families.agreement import assert_agrees
from tests.models.tiny_models import Rig, saved, tiny_named

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("model_impl", ["native", "transformers", "auto"])
def test_the_layers_of_a_native_family_can_be_chosen(model_impl: str, tmp_path: Path) -> None:
    model = tiny_named("LlamaConfig")
    model.save_pretrained(tmp_path)
    source = open_source(tmp_path, model_impl)
    assert isinstance(source, TransformersSource if model_impl == "transformers" else NativeSource)
    assert (source.outline.num_kv_heads, source.outline.head_dim, source.outline.vocab_size) == (2, 8, 97)
    assert source.outline.eos_token_ids == {1}


def test_auto_takes_transformers_where_our_layers_lack_something(tmp_path: Path) -> None:
    model = tiny_named("LlamaConfig", hidden_act="relu")
    model.save_pretrained(tmp_path)
    source = open_source(tmp_path, "auto")
    assert_agrees(model, source, Rig)
    with pytest.raises(UnsupportedModel, match="hidden_act is 'relu'"):
        open_source(tmp_path, "native")


def test_native_alone_refuses_what_only_transformers_runs(tmp_path: Path) -> None:
    tiny_named("GPT2Config").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="model_type is 'gpt2'"):
        open_source(tmp_path, "native")


def test_a_gguf_file_does_not_go_through_transformers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'model_impl is "transformers", but .*model.gguf is no model folder'):
        open_source(tmp_path / "model.gguf", "transformers")


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("parameter", ["model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"])
def test_weights_that_are_not_finite_are_refused(model_impl: str, value: float, parameter: str, tmp_path: Path) -> None:
    """torch's attention on the CPU makes zeros of queries that are not numbers: the logits would look like any."""
    model = tiny_named("LlamaConfig")
    with torch.no_grad():
        model.get_parameter(parameter).view(-1)[7] = value
    model.save_pretrained(tmp_path)
    source = open_source(tmp_path, model_impl)
    with pytest.raises(CheckpointError, match=f"{parameter} holds values that are not finite in float32") as caught:
        source.load(ReferenceKernels("cpu"), Precision.uniform("float32"), 64, lambda what, part: None)
    assert str(tmp_path) in caught.value.message


def test_weights_too_large_for_the_dtype_are_refused(tmp_path: Path) -> None:
    model = tiny_named("LlamaConfig")
    with torch.no_grad():
        model.get_parameter("model.norm.weight")[3] = 1e6
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight .* not finite in float16 .*use a wider dtype"):
        Rig(saved(model, tmp_path), dtype=torch.float16)
