"""Adapters that peft itself has written, against peft's own merged model. Where peft is not installed, the other tests
of this folder merge by hand."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from limelight.models.lora.adapter_file import AdapterFile
from tests.models.sequences import Batch
from tests.models.tiny_models import VOCAB_SIZE, Rig, saved, tiny_llama, tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peft = pytest.importorskip("peft")
    from transformers import Phi3Config, Qwen2Config, Qwen3Config

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.filterwarnings("ignore")]
MODELS = {
    "llama": tiny_llama,
    "llama with biases": lambda: tiny_llama(attention_bias=True, mlp_bias=True),
    "qwen2": lambda: tiny_model(Qwen2Config),
    "qwen3": lambda: tiny_model(Qwen3Config, head_dim=8),
    "phi3, fused": lambda: tiny_model(Phi3Config, pad_token_id=0, bos_token_id=1, eos_token_id=2),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "all linear layers": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "some": {"r": 4, "lora_alpha": 6, "target_modules": ["o_proj", "down_proj"], "use_rslora": True},
    "expression": {"r": 3, "target_modules": r".*\.1\..*(o_proj|down_proj)"},
    "patterns": {
        "r": 4,
        "lora_alpha": 7,
        "target_modules": "all-linear",
        "rank_pattern": {"o_proj": 2, r"layers\.0\.mlp\.down_proj": 8},
        "alpha_pattern": {"down_proj": 3},
    },
    "layers and exclusions": {
        "r": 4,
        "target_modules": ["o_proj", "down_proj"],
        "layers_to_transform": [1],
        "exclude_modules": ["mlp.down_proj"],
    },
    "head": {"r": 4, "target_modules": ["lm_head", "o_proj"]},
}


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("settings_name", SETTINGS)
def test_logits_are_those_of_the_model_that_peft_merges(model_name: str, settings_name: str, tmp_path: Path) -> None:
    base = MODELS[model_name]()
    rig = Rig(saved(base, tmp_path / "base"))
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **SETTINGS[settings_name])
    torch.manual_seed(11)
    adapted = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    file = AdapterFile(tmp_path / "adapter", rig.adaptable, 64)
    rig.adapters[1] = file.read(torch.float32, "cpu")

    tokens = torch.randint(0, VOCAB_SIZE, (33,)).tolist()
    with torch.inference_mode():
        base_logits = adapted.disable_adapter
        with base_logits():
            plain = adapted(torch.tensor([tokens])).logits[0]
        merged = adapted.merge_and_unload()(torch.tensor([tokens])).logits[0]
    assert not torch.allclose(plain, merged, atol=0.05)

    batch = Batch(rig.executor, rig.capacity.page_size, range(64))
    with_adapter, without = batch.sit(0, tokens, adapter=1), batch.sit(1, tokens)
    batch.step((with_adapter, 20), (without, 9))
    batch.step((with_adapter, 13), (without, 24))
    torch.testing.assert_close(rig.logits, torch.stack((merged[-1], plain[-1])), atol=1e-4, rtol=1e-4)
