"""GPTQ against packers of our own, a vector worked out by hand, and transformers run on the expanded weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.checkpoint import open_checkpoint
from limelight.models.fields import Fields
from limelight.models.quantization.gptq import GptqFormat, read_gptq
from tests.models.quantization.quantized_models import (
    Packed,
    gptq_parts,
    of_layers,
    quantize,
    save_quantized,
    stored_as,
)
from tests.models.quantization.same_logits import assert_same_as_transformers
from tests.models.tiny_models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
WIDE = {"intermediate_size": 64, "num_key_value_heads": 4}
"""Sizes that three bits divide, too."""


def test_a_word_worked_out_by_hand() -> None:
    """Outputs 0 to 7 of eight inputs; each input i of output o has level (i + o) mod 16, zeros are o, scales 0.5."""
    rows = [sum(((i + o) % 16) << (4 * i) for i in range(8)) for o in range(8)]
    assert rows[0] == 0x76543210
    assert rows[1] == 0x87654321
    signed = [row - 2**32 if row >= 2**31 else row for row in rows]
    zeros_less_one = (
        sum((o - 1) << (4 * o) for o in range(1, 8)) - 1
    )  # that of output 0 borrows, as GPTQModel writes it
    parts = {
        "qweight": torch.tensor([signed], dtype=torch.int32),
        "qzeros": torch.tensor([[zeros_less_one]], dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5, dtype=torch.float16),
    }
    matrix = GptqFormat(bits=4, group_size=None, zeros_less_one=True).matrix("m", stored_as(parts))
    assert matrix.shape == (8, 8)
    inputs, outputs = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="xy")
    expected = ((inputs + outputs) % 16 - outputs) * 0.5
    assert torch.equal(matrix.expand(parts), expected)


@settings(max_examples=60)
@given(drawn=st.data())
def test_any_layout_expands_to_what_was_packed(drawn: st.DataObject) -> None:
    bits = drawn.draw(st.sampled_from([2, 3, 4, 8]))
    outputs, inputs = 32 * drawn.draw(st.integers(1, 3)), 32 * drawn.draw(st.integers(1, 3))
    group_size = drawn.draw(st.sampled_from([-1, 8, 16, 24, 32]))
    v2 = drawn.draw(st.booleans())
    seed = drawn.draw(st.none() | st.integers(0, 9))
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(bits))
    quantized = quantize(weight, bits, group_size, symmetric=drawn.draw(st.booleans()), sorted_by=seed)
    if v2:
        quantized.zeros[0, 0] = 0
    parts = gptq_parts(quantized, bits, v2=v2)
    if seed is None and drawn.draw(st.booleans()):
        del parts["g_idx"]
    format_ = GptqFormat(bits=bits, group_size=None if group_size == -1 else group_size, zeros_less_one=not v2)
    matrix = format_.matrix("m", stored_as(parts))
    assert matrix.shape == (outputs, inputs)
    assert torch.equal(matrix.expand(parts), quantized.weight)


def test_rows_in_many_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(160, 64, generator=torch.Generator().manual_seed(0))
    quantized = quantize(weight, 4, 16, sorted_by=1)
    parts = gptq_parts(quantized, 4)
    matrix = GptqFormat(bits=4, group_size=16, zeros_less_one=True).matrix("m", stored_as(parts))
    monkeypatch.setattr("limelight.models.quantization.expansion.BLOCK_VALUES", 64 * 40)
    assert torch.equal(matrix.expand(parts), quantized.weight)


@pytest.mark.parametrize(
    ("bits", "group_size", "options"),
    [
        (4, 16, {}),
        (4, -1, {"v2": True}),
        (8, 32, {"symmetric": True}),
        (2, 16, {"sorted_by": 3}),
        (3, 16, {"v2": True}),
    ],
)
def test_logits_agree_with_transformers_on_the_expanded_weights(
    bits: int, group_size: int, options: dict[str, Any], tmp_path: Path
) -> None:
    v2 = options.pop("v2", False)

    def pack(weight: torch.Tensor) -> Packed:
        quantized = quantize(weight, bits, group_size, **options)
        return gptq_parts(quantized, bits, v2=v2), quantized.weight

    model = tiny_llama(**WIDE, attention_bias=True)
    save_quantized(
        model,
        tmp_path,
        {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group_size,
            "sym": options.get("symmetric", False),
            "desc_act": "sorted_by" in options,
            "checkpoint_format": "gptq_v2" if v2 else "gptq",
        },
        of_layers(pack),
    )
    assert_same_as_transformers(model, tmp_path)


def four_bit(weight: torch.Tensor) -> Packed:
    quantized = quantize(weight, 4, 16)
    return gptq_parts(quantized, 4), quantized.weight


def test_the_settings_file_of_old_folders_is_read(tmp_path: Path) -> None:
    model = tiny_llama()
    save_quantized(model, tmp_path, None, of_layers(four_bit))
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 16, "desc_act": False}))
    assert_same_as_transformers(model, tmp_path)


def test_a_group_that_does_not_exist_is_refused() -> None:
    parts = gptq_parts(quantize(torch.randn(8, 32), 4, 16), 4)
    parts["g_idx"][3] = 2
    matrix = GptqFormat(bits=4, group_size=16, zeros_less_one=True).matrix("m", stored_as(parts))
    with pytest.raises(CheckpointError, match=r"m\.g_idx names groups from 0 to 2; there are 2"):
        matrix.expand(parts)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"bits": 5}, UnsupportedModel, "bits is 5; Limelight reads GPTQ of 2, 3, 4 or 8 bits"),
        ({"bits": None}, CheckpointError, "bits is missing"),
        ({"group_size": 0}, CheckpointError, "group_size is 0"),
        ({"checkpoint_format": "marlin"}, UnsupportedModel, "checkpoint_format is 'marlin'"),
        ({"is_marlin_format": True}, UnsupportedModel, "reads GPTQ as 'gptq' or 'gptq_v2'"),
        ({"dynamic": {"-:.*down.*": {}}}, UnsupportedModel, "dynamic gives modules settings of their own"),
        ({"pack_dtype": "int8"}, UnsupportedModel, "pack_dtype is 'int8'"),
    ],
)
def test_other_settings_are_refused_by_name(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_gptq(Fields({"bits": 4, "group_size": 128, **change}, "config.json"))


def test_parts_that_are_missing_or_misshapen_are_named_as_they_are_stored(tmp_path: Path) -> None:
    first = "model.layers.0.self_attn"

    def pack(module: str, weight: torch.Tensor) -> Packed | None:
        packed = of_layers(four_bit)(module, weight)
        if packed is not None:
            if module == f"{first}.q_proj":
                del packed[0]["scales"]
            if module == f"{first}.k_proj":
                packed[0]["qzeros"] = torch.zeros(3, 2, dtype=torch.int32)
            if module == f"{first}.v_proj":
                del packed[0]["qweight"]
            if module == f"{first}.o_proj":
                packed[0]["scales"] = packed[0]["scales"].to(torch.int32)
        return packed

    save_quantized(tiny_llama(), tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 16}, pack)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert f"the GPTQ tensors of {tmp_path} do not match its settings" in caught.value.message
    assert f"{first}.q_proj.scales is missing" in caught.value.message
    assert f"{first}.k_proj.qzeros is [3, 2], expected [2, 2]" in caught.value.message
    assert f"{first}.v_proj.qweight is missing beside" in caught.value.message
    assert f"{first}.o_proj.scales is stored as I32, expected F16 or BF16 or F32" in caught.value.message
