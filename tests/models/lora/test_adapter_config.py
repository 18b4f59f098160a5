"""`adapter_config.json`: what it says of each module, and what is refused by name."""

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest

from limelight.errors import CheckpointError, ModelError, UnsupportedModel
from limelight.models.lora.adapter_config import AdapterConfig
from tests.models.lora.tiny_adapters import settings_of

Q0, K1, V1, DOWN1 = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.k_proj",
    "model.layers.1.self_attn.v_proj",
    "model.layers.1.mlp.down_proj",
)


def read(folder: Path, *, rank: Any = 4, alpha: Any = 8, targets: Any = None, **more: Any) -> AdapterConfig:
    settings = settings_of(rank, alpha, targets, **more)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return AdapterConfig(folder)


@pytest.mark.parametrize(
    ("targets", "more", "expected"),
    [
        (["q_proj", "v_proj"], {}, [True, False, True, False, False]),
        (["layers.1.self_attn.v_proj"], {}, [False, False, True, False, False]),
        ([Q0], {}, [True, False, False, False, False]),
        (["proj"], {}, [False] * 5),
        ("all-linear", {}, [None, None, None, None, False]),
        (r".*\.(q|k)_proj", {}, [True, True, False, False, False]),
        (r"q_proj", {}, [False] * 5),
        (["q_proj", "v_proj", "lm_head"], {"layers_to_transform": 1}, [False, False, True, False, True]),
        (["q_proj", "v_proj"], {"layers_to_transform": [0, 1]}, [True, False, True, False, False]),
        ([Q0, "v_proj"], {"layers_to_transform": [1], "layers_pattern": "layers"}, [True, False, True, False, False]),
        ("all-linear", {"exclude_modules": ["down_proj"]}, [None, None, None, False, False]),
        ("all-linear", {"exclude_modules": r".*mlp.*"}, [None, None, None, False, False]),
        (["lm_head"], {}, [False, False, False, False, True]),
        (None, {}, [None] * 5),
    ],
)
def test_targets_are_chosen_as_peft_does(tmp_path: Path, targets: Any, more: Any, expected: list[bool | None]) -> None:
    config = read(tmp_path, targets=targets, **more)
    assert [config.targets(module) for module in (Q0, K1, V1, DOWN1, "lm_head")] == expected


def test_rank_and_scale_of_each_module(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        rank_pattern={"q_proj": 2, r"layers\.1\..*_proj": 16, "k_proj": 3},
        alpha_pattern={"v_proj": 5, "mlp.down_proj": 0.5},
    )
    assert [config.rank(module) for module in (Q0, K1, V1, DOWN1)] == [2, 16, 16, 16]
    assert [config.scale(module) for module in (Q0, K1, V1, DOWN1)] == [8 / 2, 8 / 16, 5 / 16, 0.5 / 16]


def test_the_root_of_the_rank_scales_rslora(tmp_path: Path) -> None:
    config = read(tmp_path, rank=9, alpha=6, use_rslora=True)
    assert config.scale(Q0) == 6 / math.sqrt(9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_dora", True),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("modules_to_save", ["lm_head"]),
        ("layer_replication", [[0, 1]]),
        ("trainable_token_indices", [1]),
        ("target_parameters", ["experts.gate_up_proj"]),
        ("alora_invocation_tokens", [1]),
        ("use_qalora", True),
        ("megatron_config", {"a": 1}),
        ("ensure_weight_tying", True),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("peft_type", "LOHA"),
        ("peft_type", None),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", 1),
        ("layers_pattern", "h"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel, match=name):
        read(tmp_path, **{"layers_to_transform": [0], name: value})


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 0},
        {"rank": -1},
        {"rank": 10**9},
        {"rank": "8"},
        {"rank": None},
        {"rank": True},
        {"alpha": "x"},
        {"alpha": 1e300},
        {"alpha": None},
        {"targets": [1]},
        {"targets": {"a": 1}},
        {"targets": [""]},
        {"targets": "("},
        {"targets": "(a+)+"},
        {"rank_pattern": {"q_proj": 0}},
        {"rank_pattern": [1]},
        {"rank_pattern": {"(a+)+": 4}},
        {"rank_pattern": {str(index): 1 for index in range(2001)}},
        {"alpha_pattern": {"q_proj": "x"}},
        {"layers_to_transform": ["0"]},
        {"layers_to_transform": [-1]},
        {"use_rslora": "yes"},
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        read(tmp_path, **wrong)


def test_training_settings_have_no_effect_and_unknown_ones_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        read(tmp_path, lora_dropout=0.1, task_type="CAUSAL_LM", init_lora_weights="gaussian", use_dora=False)
        assert caplog.messages == []
        read(tmp_path, use_hora=True)
    assert "use_hora" in caplog.text


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        AdapterConfig(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must be an object"):
        AdapterConfig(tmp_path)


def test_settings_that_are_no_regular_file_are_not_waited_for(tmp_path: Path) -> None:
    """A pipe would hold the reading thread, and with it the stop of its engine, until somebody writes."""
    os.mkfifo(tmp_path / "adapter_config.json")
    with pytest.raises(CheckpointError, match="is no regular file"):
        AdapterConfig(tmp_path)
