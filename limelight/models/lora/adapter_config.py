"""`adapter_config.json` as peft writes it: which modules an adapter changes, and by how much.

Everything in it is honoured or refused by name. Fields that steer training alone are skipped; a field that is not known
here is skipped with a warning.
"""

import logging
import math
import re
from pathlib import Path
from typing import Any

from limelight.errors import UnsupportedModel
from limelight.models.fields import Fields, read_json_object
from limelight.models.lora.patterns import endings, safe_pattern
from limelight.quoting import quoted, shorten

logger = logging.getLogger(__name__)

WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
CONFIG = "adapter_config.json"
MAX_RANK = 65536
MAX_ALPHA = 1e9
MAX_PATTERNS = 2000
ALL_LINEAR = "all-linear"

_TRAINING_ONLY = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    ]
)
REFUSED = {
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow routing",
    "ensure_weight_tying": "adapters on tied weights",
    "fan_in_fan_out": "transposed layers",
    "kasa_config": "KaSA",
    "layer_replication": "replicated layers",
    "lora_bias": "biases of adapters",
    "megatron_config": "Megatron layers",
    "modules_to_save": "whole modules beside the low-rank ones",
    "monteclora_config": "MonteCLoRA",
    "target_parameters": "adapted parameters outside of linear layers",
    "trainable_token_indices": "trained embeddings",
    "use_bdlora": "block-diagonal LoRA",
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "velora_config": "VeLoRA",
}
"""Settings of other methods than plain low-rank matrices beside linear layers, by what they ask for."""
_HONOURED = frozenset(
    [
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    ]
)
_HARMLESS_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base model as it was; others change it, and the adapter with it."""


class AdapterConfig:
    """Settings of one adapter; module names are those of the base model (`model.layers.0.self_attn.q_proj`)."""

    def __init__(self, folder: Path) -> None:
        """Read `adapter_config.json` in `folder`.

        Raises:
            CheckpointError: the file is missing, or holds something impossible.
            UnsupportedModel: it asks for something that Limelight does not do.
        """
        path = folder / CONFIG
        fields = Fields(read_json_object(path), str(path))
        _refuse_unsupported(fields)
        self.source = fields.source
        self._rank = fields.integer("r", 1, MAX_RANK)
        self._alpha = fields.number("lora_alpha", -MAX_ALPHA, MAX_ALPHA)
        self._root_scaled = fields.flag("use_rslora", default=False)
        self._ranks = _patterns(fields, "rank_pattern", whole=True)
        self._alphas = _patterns(fields, "alpha_pattern", whole=False)
        self._targets = _modules(fields, "target_modules")
        self._excluded = _modules(fields, "exclude_modules")
        self._layers = _layers(fields)

    def rank(self, module: str) -> int:
        """Rank of the adapter at `module`."""
        return int(_first_match(self._ranks, module, self._rank))

    def scale(self, module: str) -> float:
        """What B A is multiplied with: alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023, arXiv 2312.03732)."""
        rank = self.rank(module)
        return _first_match(self._alphas, module, self._alpha) / (math.sqrt(rank) if self._root_scaled else rank)

    def targets(self, module: str) -> bool | None:
        """Whether `module`, a linear layer, has an adapter; None if the settings leave that to the tensors."""
        if self._excluded is not None and _selects(self._excluded, module):
            return False
        if self._targets is None:
            return None
        if isinstance(self._targets, re.Pattern):
            return _selects(self._targets, module)
        if ALL_LINEAR in self._targets:
            # peft saves this word resolved into names; which layers are linear there (routers?) only the tensors tell.
            return None if module != "lm_head" and self._has_layer(module) else False
        return _selects(self._targets, module) and (module in self._targets or self._has_layer(module))

    def _has_layer(self, module: str) -> bool:
        if self._layers is None:
            return True
        index = re.match(r"model\.layers\.(\d+)\.", module)
        return index is not None and int(index[1]) in self._layers


def _refuse_unsupported(fields: Fields) -> None:
    kind = fields.text("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{fields.source}: peft_type is {quoted(kind)}; Limelight runs adapters of type LORA")
    bias = fields.text("bias")
    if bias not in (None, "none"):
        raise UnsupportedModel(
            f'{fields.source}: bias is {quoted(bias)}; Limelight runs adapters with bias "none" only'
        )
    for name, title in REFUSED.items():
        if fields.values.get(name):
            raise UnsupportedModel(f"{fields.source}: {name} is set; Limelight does not run {title}")
    start = fields.values.get("init_lora_weights")
    if not any(start is known or (isinstance(known, str) and start == known) for known in _HARMLESS_STARTS):
        raise UnsupportedModel(
            f"{fields.source}: init_lora_weights is {quoted(start)}, which changes the base model too; save the "
            "adapter converted to a plain LoRA (peft: save_pretrained(path_initial_model_for_weight_conversion=...))"
        )
    for name, value in fields.values.items():
        if value and name not in _TRAINING_ONLY and name not in _HONOURED:
            logger.warning("%s: %.60s is not known and has no effect", fields.source, name)


def _patterns(fields: Fields, name: str, *, whole: bool) -> list[tuple[re.Pattern[str], float]]:
    """Pattern -> value, in the file's order: as in peft, the first that matches the end of a module's name counts."""
    group = fields.group(name)
    if group is None:
        return []
    if len(group.values) > MAX_PATTERNS:
        raise UnsupportedModel(f"{group.source} has {len(group.values)} entries; at most {MAX_PATTERNS} are read")
    found = []
    for key in group.values:
        value = group.integer(key, 1, MAX_RANK) if whole else group.number(key, -MAX_ALPHA, MAX_ALPHA)
        safe_pattern(key, f"{group.source}: {shorten(key)}")
        found.append((re.compile(rf"(?:{key})$"), float(value)))
    return found


def _first_match(patterns: list[tuple[re.Pattern[str], float]], module: str, default: float) -> float:
    for pattern, value in patterns:
        if any(pattern.match(ending) for ending in endings(module)):
            return value
    return default


def _modules(fields: Fields, name: str) -> re.Pattern[str] | frozenset[str] | None:
    value: Any = fields.values.get(name)
    if value is None or value == []:
        return None
    if isinstance(value, str):
        if value.lower() == ALL_LINEAR:
            return frozenset((ALL_LINEAR,))
        return safe_pattern(value, f"{fields.source}: {name}")
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise fields.refusal(name, value, "it must be a regular expression or a list of module names")
    return frozenset(value)


def _selects(modules: re.Pattern[str] | frozenset[str], name: str) -> bool:
    if isinstance(modules, re.Pattern):
        return modules.fullmatch(name) is not None
    return not modules.isdisjoint(endings(name))


def _layers(fields: Fields) -> frozenset[int] | None:
    """Indexes of the layers that are adapted, None for all."""
    value: Any = fields.values.get("layers_to_transform")
    if value is None or value == []:
        return None
    pattern = fields.values.get("layers_pattern")
    if pattern not in (None, "", [], "layers", ["layers"]):
        raise UnsupportedModel(
            f'{fields.source}: layers_pattern is {quoted(pattern)}; the layers of every model here are called "layers"'
        )
    indexes = value if isinstance(value, list) else [value]
    if not all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in indexes):
        raise fields.refusal("layers_to_transform", value, "it must be a layer's index or a list of them")
    return frozenset(indexes)
