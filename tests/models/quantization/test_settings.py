"""Any settings from outside give a format or an error that names the file."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import ModelError
from limelight.models.quantization.settings import METHODS, read_quantization

LONG = "x" * 5000
TEXT = st.text(max_size=4) | st.just(LONG)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.sampled_from([2**70, 0.5, LONG]) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = (
    "bits", "group_size", "checkpoint_format", "dynamic", "pack_dtype", "version", "zero_point", "weight_block_size",
    "quant_algo", "quantization", "format", "config_groups", "sparsity_config", "transform_config", "w_bit",
)  # fmt: skip
WEIGHTS = st.fixed_dictionaries(
    {},
    optional={
        "num_bits": ANYTHING | st.integers(2, 8),
        "type": ANYTHING | st.sampled_from(["int", "float"]),
        "strategy": ANYTHING | st.sampled_from(["tensor", "channel", "group", "block"]),
        "group_size": ANYTHING,
        "block_structure": ANYTHING | st.just([16, 16]),
        "symmetric": ANYTHING,
    },
)
GROUPS = st.fixed_dictionaries(
    {"g": st.fixed_dictionaries({"targets": ANYTHING | st.just(["Linear"]), "weights": ANYTHING | WEIGHTS})}
) | st.fixed_dictionaries({LONG: ANYTHING | st.fixed_dictionaries({"weights": ANYTHING | WEIGHTS})})


@settings(max_examples=200)
@given(
    method=st.sampled_from([*METHODS, "hqq", 3, None, LONG]),
    values=st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=5),
    groups=st.none() | GROUPS,
)
def test_any_settings_give_a_format_or_a_model_error(tmp_path: Path, method: Any, values: Any, groups: Any) -> None:
    described = {"quant_method": method, **values}
    if groups is not None:
        described |= {"config_groups": groups, "format": "pack-quantized"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": described}))
    found, message = None, None
    try:
        found = read_quantization(tmp_path)
    except ModelError as error:
        message = error.message
    assert len(message or "") < len(str(tmp_path)) + 800
    assert found.title if found is not None else str(tmp_path) in str(message)
