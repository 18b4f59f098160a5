"""FP8 beside its scales against transformers' own expansion, and against numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.checkpoint import open_checkpoint
from limelight.models.fields import Fields
from limelight.models.quantization.fp8 import Fp8Format, ModelOptNvfp4Format, read_fp8, read_modelopt
from tests.models.quantization.quantized_models import Packed, of_layers, save_quantized, stored_as
from tests.models.quantization.same_logits import assert_same_as_transformers
from tests.models.tiny_models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def in_blocks(weight: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 and the factor of each block, block by block, so that the largest of each is 448."""
    outputs, inputs = weight.shape
    stored = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    factors = torch.empty(-(-outputs // rows), -(-inputs // columns))
    for row in range(0, outputs, rows):
        for column in range(0, inputs, columns):
            block = weight[row : row + rows, column : column + columns]
            factor = block.abs().max() / 448
            factors[row // rows, column // columns] = factor
            stored[row : row + rows, column : column + columns] = (block / factor).to(torch.float8_e4m3fn)
    return stored, factors


def expanded(stored: torch.Tensor, factors: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Value by value: that of its block is factors[row // rows, column // columns]."""
    weight = stored.float()
    for row in range(weight.shape[0]):
        for column in range(weight.shape[1]):
            weight[row, column] *= factors[row // rows, column // columns]
    return weight


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
def test_blocks_are_expanded_as_transformers_does(scale_dtype: torch.dtype) -> None:
    stored, factors = in_blocks(torch.randn(256, 384, generator=torch.Generator().manual_seed(0)), 128, 128)
    parts = {"weight": stored, "weight_scale_inv": factors.to(scale_dtype)}
    theirs = Fp8Dequantize(None)._dequantize_one(stored, parts["weight_scale_inv"], output_dtype=torch.float32)
    matrix = Fp8Format(block=(128, 128)).matrix("m", stored_as(parts))
    assert torch.equal(matrix.expand(parts), theirs)


@pytest.mark.parametrize("block", [(128, 128), (16, 24), (5, 7)])
def test_blocks_end_where_the_weight_does(block: tuple[int, int]) -> None:
    stored, factors = in_blocks(torch.randn(72, 40, generator=torch.Generator().manual_seed(0)), *block)
    parts = {"weight": stored, "weight_scale_inv": factors}
    matrix = Fp8Format(block=block).matrix("m", stored_as(parts))
    assert matrix.shape == (72, 40)
    assert torch.equal(matrix.expand(parts), expanded(stored, factors, *block))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (6, 1)])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_one_scale_or_one_for_each_output(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = torch.tensor([[1.0, -2.0], [0.5, 4.0], [8.0, 0.0], [1.5, 3.0], [1.0, 1.0], [2.0, 2.0]])
    scales = torch.full(shape, 0.5) if len(shape) == 0 or shape[0] == 1 else torch.arange(1.0, 7.0).reshape(shape)
    parts = {"weight": weight.to(dtype), "weight_scale": scales}
    matrix = Fp8Format(block=None).matrix("m", stored_as(parts))
    assert shape in matrix.parts["weight_scale"].shapes
    assert torch.equal(matrix.expand(parts), weight * (scales.reshape(-1, 1) if scales.numel() > 1 else 0.5))


def test_logits_agree_with_transformers_on_the_expanded_weights(tmp_path: Path) -> None:
    def pack(weight: torch.Tensor) -> Packed:
        stored, factors = in_blocks(weight, 20, 20)
        return {"weight": stored, "weight_scale_inv": factors}, expanded(stored, factors, 20, 20)

    model = tiny_llama(attention_bias=True)
    settings = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [20, 20],
        "modules_to_not_convert": ["lm_head"],
    }
    save_quantized(model, tmp_path, settings, of_layers(pack))
    assert_same_as_transformers(model, tmp_path)


def static(weight: torch.Tensor) -> Packed:
    stored, factors = in_blocks(weight, *weight.shape)
    parts = {"weight": stored, "weight_scale": factors.reshape(()), "input_scale": torch.tensor(0.1)}
    return parts, stored.float() * factors


@pytest.mark.parametrize("method", ["fp8", "modelopt", "hf_quant_config.json"])
def test_static_scales_of_activations_and_caches_are_let_be(method: str, tmp_path: Path) -> None:
    def pack(module: str, weight: torch.Tensor) -> Packed | None:
        packed = of_layers(static)(module, weight)
        if packed is not None and module.endswith(("k_proj", "v_proj")):
            packed[0][f"{module[-6]}_scale"] = torch.tensor(0.2)
        return packed

    model = tiny_llama()
    settings: dict[str, Any] | None = {"quant_method": method, "activation_scheme": "static", "quant_algo": "FP8"}
    if method == "hf_quant_config.json":
        algorithms = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
        settings = None
    save_quantized(model, tmp_path, settings, pack)
    if method == "hf_quant_config.json":
        described = {"producer": {"name": "modelopt"}, "quantization": algorithms}
        (tmp_path / method).write_text(json.dumps(described))
    assert_same_as_transformers(model, tmp_path)


def test_four_bits_of_modelopt_have_two_scales() -> None:
    """Bytes hold the first value in their lower half: 0x92 is 1.0 and -0.5."""
    parts = {
        "weight": torch.full((1, 16), 0x92, dtype=torch.uint8),
        "weight_scale": torch.tensor([[2.0, 3.0]]).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.25),
    }
    matrix = ModelOptNvfp4Format().matrix("m", stored_as(parts))
    assert matrix.shape == (1, 32)
    assert matrix.expand(parts).tolist() == [[0.5, -0.25] * 8 + [0.75, -0.375] * 8]


def test_a_weight_without_its_scale_is_named(tmp_path: Path) -> None:
    def pack(weight: torch.Tensor) -> Packed:
        parts, expected = static(weight)
        return {"weight": parts["weight"]}, expected

    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    save_quantized(tiny_llama(), tmp_path, settings, of_layers(pack))
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.down_proj\.weight_scale_inv is missing; .* and 4 more"):
        open_checkpoint(tmp_path)


def test_blocks_of_another_size_are_named(tmp_path: Path) -> None:
    def pack(weight: torch.Tensor) -> Packed:
        stored, factors = in_blocks(weight, 16, 16)
        return {"weight": stored, "weight_scale_inv": factors}, weight

    settings = {"quant_method": "fp8", "weight_block_size": [16, 32]}
    save_quantized(tiny_llama(), tmp_path, settings, of_layers(pack))
    with pytest.raises(CheckpointError, match=r"q_proj\.weight_scale_inv is \[2, 2\], expected \[2, 1\]"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("block", [[128], [0, 128], "128x128", [1.5, 2], [True, True]])
def test_an_impossible_block_is_refused(block: object) -> None:
    with pytest.raises(CheckpointError, match=r"weight_block_size is .* it must be two integers"):
        read_fp8(Fields({"weight_block_size": block}, "config.json"))


def test_other_algorithms_of_modelopt_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="quant_algo is 'W4A8_AWQ'; Limelight reads FP8 and NVFP4 of ModelOpt"):
        read_modelopt(Fields({"quantization": {"quant_algo": "W4A8_AWQ"}}, "hf_quant_config.json"))
