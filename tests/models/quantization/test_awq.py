"""AWQ against packers of our own, a word worked out by hand, and transformers run on the expanded weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.quantization.awq import AwqFormat, read_awq
from tests.models.quantization.quantized_models import (
    Packed,
    awq_gemv_parts,
    awq_parts,
    of_layers,
    quantize,
    save_quantized,
    stored_as,
)
from tests.models.quantization.same_logits import assert_same_as_transformers
from tests.models.tiny_models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_a_word_worked_out_by_hand() -> None:
    """0x75316420 holds levels 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits: output o has level o."""
    parts = {
        "qweight": torch.tensor([[0x75316420]], dtype=torch.int32),
        "qzeros": torch.tensor([[0x11111111]], dtype=torch.int32),
        "scales": torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]], dtype=torch.float16),
    }
    matrix = AwqFormat(group_size=None, by_output=False).matrix("m", stored_as(parts))
    assert matrix.shape == (8, 1)
    assert matrix.expand(parts).flatten().tolist() == [-1, 0, 1, 4, 3, 8, 5, 12]


@pytest.mark.parametrize("group_size", [-1, 8, 32, 64])
@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize("outputs", [8, 72])
def test_any_layout_expands_to_what_was_packed(group_size: int, by_output: bool, outputs: int) -> None:
    weight = torch.randn(outputs, 192, generator=torch.Generator().manual_seed(1))
    quantized = quantize(weight, 4, group_size)
    parts = awq_gemv_parts(quantized, group_size) if by_output else awq_parts(quantized)
    matrix = AwqFormat(None if group_size == -1 else group_size, by_output).matrix("m", stored_as(parts))
    assert matrix.shape == (outputs, 192)
    assert {part: matrix.parts[part].shapes[0] for part in parts} == {
        part: tuple(tensor.shape) for part, tensor in parts.items()
    }
    assert torch.equal(matrix.expand(parts), quantized.weight)


def test_rows_in_many_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized = quantize(torch.randn(136, 64, generator=torch.Generator().manual_seed(1)), 4, 16)
    monkeypatch.setattr("limelight.models.quantization.expansion.BLOCK_VALUES", 64 * 40)
    for by_output, parts in ((False, awq_parts(quantized)), (True, awq_gemv_parts(quantized, 16))):
        matrix = AwqFormat(group_size=16, by_output=by_output).matrix("m", stored_as(parts))
        assert torch.equal(matrix.expand(parts), quantized.weight)


@pytest.mark.parametrize(
    ("group_size", "version"), [(16, "gemm"), (-1, "GEMM"), (16, "gemv"), (32, "exllama"), (16, None)]
)
def test_logits_agree_with_transformers_on_the_expanded_weights(
    group_size: int, version: str | None, tmp_path: Path
) -> None:
    def pack(weight: torch.Tensor) -> Packed:
        quantized = quantize(weight, 4, group_size)
        parts = awq_gemv_parts(quantized, group_size) if version == "gemv" else awq_parts(quantized)
        return parts, quantized.weight

    model = tiny_llama(intermediate_size=64)
    settings: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True}
    if version is not None:
        settings["version"] = version
    save_quantized(model, tmp_path, settings, of_layers(pack))
    assert_same_as_transformers(model, tmp_path)


def test_the_settings_file_of_old_folders_is_read(tmp_path: Path) -> None:
    def pack(weight: torch.Tensor) -> Packed:
        quantized = quantize(weight, 4, 16)
        return awq_parts(quantized), quantized.weight

    model = tiny_llama()
    save_quantized(model, tmp_path, None, of_layers(pack))
    settings = {"zero_point": True, "q_group_size": 16, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "quant_config.json").write_text(json.dumps(settings))
    assert_same_as_transformers(model, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 8}, "bits is 8; Limelight reads AWQ of 4 bits"),
        ({"version": "marlin"}, "version is 'marlin'; Limelight reads AWQ as 'gemm' or 'gemv'"),
        ({"version": "gemv_fast"}, "version is 'gemv_fast'"),
        ({"format": "llm-awq"}, "format is 'llm-awq'"),
        ({"zero_point": False}, "zero_point is false"),
    ],
)
def test_other_settings_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_awq(Fields(change, "config.json"))


def test_inputs_that_no_group_divides_are_refused() -> None:
    parts = awq_parts(quantize(torch.randn(8, 32), 4, 16))
    with pytest.raises(CheckpointError, match="m has 32 inputs, no multiple of its group_size, which is 24"):
        AwqFormat(group_size=24, by_output=False).matrix("m", stored_as(parts))
