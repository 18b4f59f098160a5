"""What of a configuration is read for transformers, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.transformers_model.source import TransformersSource
from tests.models.families.agreement import assert_agrees
from tests.models.tiny_models import SMALL, Rig, tiny_named

pytestmark = pytest.mark.usefixtures("one_torch_thread")
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "encoder-decoder": ("T5Config", {}, "it is no decoder of text"),
    "encoder-decoder with a decoder class": ("BartConfig", {}, "it is an encoder-decoder"),
    "an encoder": ("BertConfig", {}, "BertSelfAttention is not causal"),
    "speech": ("WhisperConfig", {}, "it is an encoder-decoder"),
    "vision": ("ViTConfig", {}, "it is no decoder of text"),
    "state-space": ("MambaConfig", {}, "keep a running state"),
    "recurrent": ("RwkvConfig", {}, "keep a running state"),
    "hybrid": ("Qwen3NextConfig", {}, "keep a running state"),
    "convolutions": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}, "layers of the kind conv"),
    "chunked": ("Llama4TextConfig", {}, "layers of the kind chunked_attention"),
    "ALiBi": ("BloomConfig", {}, r"biases attention by distance \(ALiBi\)"),
    "built-in attention": ("FalconConfig", {}, "its attention is built in"),
    "attends twice": ("DiffLlamaConfig", {}, "a layer attends more than once"),
    "a mask of its own": ("DogeConfig", {}, "makes an attention mask of its own"),
    "a window that attention is not told": (
        "PhimoeConfig", {"sliding_window": 11, **EXPERTS}, "told the sliding windows none, while .* says 11",
    ),
    "layers of different shapes": (
        "MiMoV2FlashConfig", {}, "its layers have different key heads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_what_cannot_run_is_refused_by_name(name: str, tmp_path: Path) -> None:
    class_name, settings, message = CONFIGS[name]
    config_class = getattr(transformers, class_name)
    known = config_class()
    small = {key: value for key, value in SMALL.items() if hasattr(known, key)}
    config_class(**{**small, "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 0, **settings}).save_pretrained(
        tmp_path
    )
    with pytest.raises(UnsupportedModel, match=message) as caught:
        TransformersSource(tmp_path)
    assert "\n" not in caught.value.message
    assert str(tmp_path / "config.json") in caught.value.message


def write_config(folder: Path, **fields: Any) -> None:
    (folder / "config.json").write_text(json.dumps(fields))


GPT2 = {"model_type": "gpt2", "vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"model_type": "brand_new"},
            UnsupportedModel,
            r"'brand_new', which neither Limelight nor transformers \S+ knows",
        ),
        (
            {"model_type": "brand_new", "auto_map": {"AutoModelForCausalLM": "evil.Model"}},
            UnsupportedModel,
            r"code of its own \(auto_map\), which Limelight never runs",
        ),
        ({}, UnsupportedModel, "model_type is missing"),
        (
            {**GPT2, "architectures": ["GPT2ForSequenceClassification"]},
            UnsupportedModel,
            "needs a ...ForCausalLM model",
        ),
        ({**GPT2, "quantization_config": {"quant_method": "bitsandbytes"}}, UnsupportedModel, "bitsandbytes"),
        ({**GPT2, "n_layer": 10**9}, CheckpointError, "n_layer is 1000000000; it must be an integer up to 1024"),
        ({**GPT2, "n_head": 10**30}, CheckpointError, r"an integer beyond 2\*\*53"),
        ({**GPT2, "n_head": 5}, UnsupportedModel, r"cannot build the model: ValueError: .*divisible by num_heads"),
        ({**GPT2, "n_head": "four"}, UnsupportedModel, "cannot read it: StrictDataclassFieldValidationError"),
        ({**GPT2, "activation_function": "no such"}, UnsupportedModel, "cannot build the model: KeyError"),
        ({**GPT2, "n_positions": 0}, CheckpointError, "must say how long its context is"),
    ],
)
def test_hostile_configurations_are_refused_in_one_line(
    fields: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    write_config(tmp_path, **fields)
    (tmp_path / "evil.py").write_text("raise SystemExit('code from a repository ran')")
    with pytest.raises(error, match=message) as caught:
        TransformersSource(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_configuration_does_not_choose_how_it_is_run(tmp_path: Path) -> None:
    model = tiny_named("GPT2Config")
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings |= {
        "attn_implementation": "someone/kernels",
        "_attn_implementation_internal": "someone/kernels",
        "experts_implementation": "nothing",
        "transformers_weights": "other.bin",
        "auto_map": {"AutoModelForCausalLM": "evil.Model"},
    }
    write_config(tmp_path, **settings)
    assert_agrees(model, TransformersSource(tmp_path), Rig)


@pytest.mark.parametrize(
    ("class_name", "settings"),
    [
        ("SmolLM3Config", {"num_hidden_layers": 2**45}),
        ("SmolLM3Config", {"num_hidden_layers": 1e15}),
        ("GPT2Config", {"n_layer": 2**45}),
        ("SmolLM3Config", {"max_window_layers": 2**45}),
    ],
)
def test_a_number_of_layers_is_bounded_before_anything_counts_up_to_it(
    class_name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    config = getattr(transformers, class_name)().to_dict()
    write_config(tmp_path, **{**config, **settings})
    with pytest.raises(
        CheckpointError, match=f"config.json: {next(iter(settings))} is .*; it must be an integer up to"
    ):
        TransformersSource(tmp_path)


def test_a_table_of_labels_is_never_made(tmp_path: Path) -> None:
    """transformers makes an entry for each of `num_labels`."""
    tiny_named("GPT2Config", num_labels=3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, **{**config, "num_labels": 2**50, "id2label": {"x": []}, "label2id": 1})
    assert TransformersSource(tmp_path).outline.vocab_size == config["vocab_size"]


@pytest.mark.parametrize("positions", [0, 1])
def test_a_context_without_room_for_a_second_token_is_refused(positions: int, tmp_path: Path) -> None:
    write_config(tmp_path, **{**GPT2, "n_positions": positions})
    with pytest.raises(CheckpointError, match=f"max_position_embeddings is {positions}; .* 2 or more"):
        TransformersSource(tmp_path)
