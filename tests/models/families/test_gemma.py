"""The Gemma family against transformers, on tiny random weights."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    SiglipVisionConfig,
)

from limelight.config import EngineConfig
from limelight.errors import CheckpointError
from limelight.kernels.reference import ReferenceKernels
from limelight.models.checkpoint import open_checkpoint
from limelight.models.loading import load_model
from tests.models.families.agreement import (
    assert_agrees,
    assert_all_differ,
    assert_same_logits_in_chunks,
    logits_of,
    prompt_of,
)
from tests.models.sequences import Batch
from tests.models.tiny_models import SMALL, Rig, saved, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TINY: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "sliding_window": 9,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
PATTERN = {"sliding_window_pattern": 3}
LINEAR = {"rope_type": "linear", "factor": 4.0}
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 2000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}


def tiny_gemma1(**settings: Any) -> Any:
    own = {name: value for name, value in TINY.items() if name not in ("query_pre_attn_scalar", "sliding_window")}
    return tiny_model(GemmaConfig, **{**own, **settings})


def tiny_gemma2(**settings: Any) -> Any:
    return tiny_model(Gemma2Config, **{**TINY, **CAPS, **settings})


def tiny_gemma3(**settings: Any) -> Any:
    return tiny_model(Gemma3TextConfig, **{**TINY, **PATTERN, **settings})


MODELS = {
    "gemma": (tiny_gemma1, {}),
    "gemma, legacy activation": (tiny_gemma1, {"hidden_act": "gelu"}),
    "gemma, one kv head": (tiny_gemma1, {"num_key_value_heads": 1, "attention_bias": True}),
    "gemma2": (tiny_gemma2, {}),
    "gemma2, no caps": (tiny_gemma2, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, own layers": (tiny_gemma2, {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    "gemma2, biases": (tiny_gemma2, {"attention_bias": True}),
    "gemma2, window of one": (tiny_gemma2, {"sliding_window": 1}),
    "gemma2, own head": (tiny_gemma2, {"tie_word_embeddings": False}),
    "gemma3": (tiny_gemma3, {}),
    "gemma3, local rope": (tiny_gemma3, {"rope_local_base_freq": 30.0, "rope_theta": 3000.0}),
    "gemma3, scaled": (tiny_gemma3, {"rope_scaling": LINEAR}),
    "gemma3, nested ropes": (tiny_gemma3, {"rope_parameters": ROPES}),
    "gemma3, own layers": (tiny_gemma3, {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    "gemma3, full attention only": (tiny_gemma3, {"layer_types": ["full_attention"] * 4}),
    "gemma3, capped logits": (tiny_gemma3, {"final_logit_softcapping": 5.0}),
    "gemma3, biases": (tiny_gemma3, {"attention_bias": True}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    make, options = MODELS[name]
    model = make(**options)
    if name in ("gemma", "gemma2", "gemma3, nested ropes"):
        assert_agrees(model, saved(model, tmp_path))
    else:
        assert_same_logits_in_chunks(model, saved(model, tmp_path))


def test_every_setting_of_gemma2_reaches_the_logits() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 12},
        {"sliding_window": 10},
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
        {"rope_theta": 100.0},
        {"rms_norm_eps": 0.1},
        {"hidden_activation": "silu"},
    ]
    assert_all_differ([tiny_gemma2(**change) for change in settings])


def test_every_setting_of_gemma3_reaches_the_logits() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"sliding_window_pattern": 2},
        {"rope_scaling": LINEAR},
        {"rope_theta": 100.0},
        {"rope_local_base_freq": 100.0},
        {"rope_parameters": ROPES},
        {"sliding_window": 10},
        {"query_pre_attn_scalar": 12},
        {"final_logit_softcapping": 5.0},
    ]
    assert_all_differ([tiny_gemma3(**change) for change in settings])


def tiny_multimodal(**settings: Any) -> Any:
    """A Gemma 3 that sees images, if little."""
    vision = SiglipVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=8, patch_size=4
    )
    text = Gemma3TextConfig(**{**SMALL, **TINY, **PATTERN, **settings})
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=96,
        tie_word_embeddings=text.tie_word_embeddings,
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def renamed(folder: Path, change: Callable[[str], str]) -> None:
    """Write the tensors of `folder` again, under other names."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({change(name): tensor for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def hub_name(name: str) -> str:
    """As the files of the hub are, and as transformers saves."""
    name = re.sub(r"^model\.language_model\.", "language_model.model.", name)
    return re.sub(
        r"^model\.(vision_tower|multi_modal_projector)", r"\1", re.sub("^lm_head", "language_model.lm_head", name)
    )


def new_name(name: str) -> str:
    """As the modules of transformers are called since 4.52."""
    name = re.sub(r"^language_model\.model\.", "model.language_model.", hub_name(name))
    name = re.sub(r"^language_model\.lm_head", "lm_head", name)
    return re.sub(r"^(vision_tower|multi_modal_projector)", r"model.\1", name)


@pytest.mark.parametrize("spelling", [hub_name, new_name])
@pytest.mark.parametrize("tied", [True, False])
def test_the_text_part_of_a_model_that_sees_images_agrees(
    spelling: Callable[[str], str], tied: bool, tmp_path: Path
) -> None:
    model = tiny_multimodal(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    renamed(tmp_path, spelling)
    checkpoint = open_checkpoint(tmp_path)
    assert_same_logits_in_chunks(model, checkpoint)
    assert not any("vision" in name or "projector" in name for name in checkpoint.names())
    assert checkpoint.spec.notes == (
        f"{tmp_path / 'config.json'}: text_config describes a model that sees images; only its text part is loaded",
    )


def test_loading_says_that_the_part_that_sees_is_left_out(tmp_path: Path) -> None:
    tiny_multimodal().save_pretrained(tmp_path)
    letters = {chr(33 + index): index for index in range(90)}
    Tokenizer(models.BPE(letters, [])).save(str(tmp_path / "tokenizer.json"))
    said: list[str] = []
    config = EngineConfig(model=str(tmp_path), device="cpu", kv_cache_bytes=2**20, page_size=8)
    loaded = load_model(config, lambda what, fraction: said.append(what))
    assert loaded.capacity.max_model_len == 128
    assert [what for what in said if what.endswith("sees images; only its text part is loaded")]


def test_a_parameter_under_both_spellings_is_refused(tmp_path: Path) -> None:
    tiny_multimodal().save_pretrained(tmp_path)
    renamed(tmp_path, hub_name)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.language_model.norm.weight"] = tensors["language_model.model.norm.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"are both model.norm.weight of .*config.json.*; remove one of them"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("make", [tiny_gemma1, tiny_gemma2, tiny_gemma3])
def test_bfloat16_is_as_near_to_exact_numbers_as_in_transformers(make: Callable[..., Any], tmp_path: Path) -> None:
    """Weights that bfloat16 holds exactly: what differs is the rounding of each step, and no step overflows."""
    narrow = make(hidden_size=40).to(torch.bfloat16)
    checkpoint = saved(narrow, tmp_path)
    assert checkpoint.spec.dtype == "bfloat16"
    prompt = prompt_of(60)
    theirs = logits_of(narrow, prompt)[20:].float()
    exact = logits_of(narrow.float(), prompt)[20:]
    rig = Rig(checkpoint, dtype=torch.bfloat16)
    batch = Batch(rig.executor, rig.capacity.page_size, range(64))
    sequence = batch.sit(0, prompt[:20])
    batch.step((sequence, 20))
    ours = []
    for token_id in prompt[20:]:
        sequence.tokens[-1] = token_id
        sequence.drawn.clear()
        batch.step((sequence, 1))
        ours.append(rig.logits[0])
    assert (torch.stack(ours) - exact).abs().mean() < 1.3 * (theirs - exact).abs().mean()


class FirstNorm(ReferenceKernels):
    """Keeps what enters the first layer."""

    entering: torch.Tensor | None = None

    def add_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.entering is None:
            self.entering = hidden.clone()
        return super().add_norm(hidden, residual, weight, epsilon)


@pytest.mark.parametrize("make", [tiny_gemma1, tiny_gemma2, tiny_gemma3])
def test_embeddings_are_scaled_by_what_the_dtype_makes_of_the_root(make: Callable[..., Any], tmp_path: Path) -> None:
    """sqrt(40) = 6.3246 is 6.3125 in bfloat16, with which the models were trained: bit for bit as in transformers."""
    model = make(hidden_size=40).to(torch.bfloat16)
    kernels = FirstNorm("cpu")
    rig = Rig(saved(model, tmp_path), dtype=torch.bfloat16, kernels=kernels)
    batch = Batch(rig.executor, rig.capacity.page_size, range(64))
    prompt = prompt_of(20)
    batch.step((batch.sit(0, prompt), 20))
    with torch.inference_mode():
        theirs = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[0][0]
    table = model.get_input_embeddings().weight[prompt]
    assert torch.equal(kernels.entering, theirs)
    assert not torch.equal(kernels.entering, (table.float() * 40**0.5).bfloat16())
