"""Whose layers run a model."""

from pathlib import Path

import pytest

from limelight.errors import ConfigError, UnsupportedModel
from limelight.models.source import NativeSource, open_source
from limelight.models.transformers_model.source import TransformersSource
from tests.models.families.agreement import assert_agrees
from tests.models.tiny_models import Rig, tiny_named

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
