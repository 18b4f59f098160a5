"""What the kernels in C keep of quantised safetensors: levels as blocks, or plain numbers of 16 bits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3MoeConfig

from limelight.models.checkpoint import open_checkpoint
from limelight.models.decoder import weights_bytes
from limelight.models.gguf.blocks import to_float32
from limelight.models.parameters import Parameters
from limelight.models.precision import Precision
from limelight.models.quantization.awq import AwqFormat
from limelight.models.quantization.fp8 import Fp8Format
from limelight.models.quantization.gptq import GptqFormat
from limelight.models.quantization.scheme import QuantizedMatrix
from tests.models.quantization.quantized_models import (
    Packed,
    awq_gemv_parts,
    awq_parts,
    gptq_parts,
    of_layers,
    quantize,
    save_quantized,
    save_quantized_experts,
    stored_as,
)
from tests.models.tiny_models import c_kernels, tiny_llama, tiny_model

GROUP_SIZES = (32, 64, 128, -1)
AS_STORED = Precision(values="float32", kv="bfloat16", weights=None)


def weight_of(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(7)) * 0.05 + 0.01


def packed_values(matrix: QuantizedMatrix, parts: dict[str, Tensor]) -> Tensor:
    assert matrix.kept == "Q4_1"
    assert matrix.pack is not None
    stored = matrix.pack(parts)
    assert (stored.format, stored.shape, stored.rows.shape[0]) == ("Q4_1", matrix.shape, matrix.shape[0])
    return torch.from_numpy(to_float32(stored.rows, stored.format, stored.shape))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("layout", ["gptq", "awq", "gemv"])
def test_four_bits_stay_four_bits(layout: str, group_size: int, symmetric: bool) -> None:
    weight = weight_of(72, 256)
    quantized = quantize(weight, 4, group_size, symmetric=symmetric)
    size = None if group_size == -1 else group_size
    if layout == "gptq":
        parts = gptq_parts(quantized, 4)
        matrix = GptqFormat(bits=4, group_size=size, zeros_less_one=True).matrix("m", stored_as(parts))
    else:
        parts = awq_parts(quantized) if layout == "awq" else awq_gemv_parts(quantized, group_size)
        matrix = AwqFormat(group_size=size, by_output=layout == "gemv").matrix("m", stored_as(parts))
    expanded, packed = matrix.expand(parts), packed_values(matrix, parts)
    scales = quantized.scales.float()[:, quantized.groups]
    zeros = quantized.zeros[:, quantized.groups]
    assert bool(((packed - expanded).abs() <= scales / 128 + 2**-24).all())
    exact = (zeros & (zeros - 1)) == 0  # minimums of these are float16 numbers
    assert bool(exact.all()) or not symmetric
    torch.testing.assert_close(packed[exact], expanded[exact], rtol=1e-6, atol=1e-7)
    assert float((packed - expanded).norm()) < 0.02 * float((expanded - weight).norm())


@pytest.mark.parametrize(
    ("bits", "group_size", "sorted_by", "kept"),
    [(4, 32, 3, "BF16"), (4, 16, None, "BF16"), (3, 32, None, "BF16"), (8, 32, None, "F16")],
)
def test_what_no_block_holds_is_kept_in_sixteen_bits(
    bits: int, group_size: int, sorted_by: int | None, kept: str
) -> None:
    weight = weight_of(64, 256)
    quantized = quantize(weight, bits, group_size, sorted_by=sorted_by)
    parts = gptq_parts(quantized, bits)
    matrix = GptqFormat(bits=bits, group_size=group_size, zeros_less_one=True).matrix("m", stored_as(parts))
    assert (matrix.kept, matrix.pack) == (kept, None)
    expanded = matrix.expand(parts)
    kept_values = expanded.to(torch.bfloat16 if kept == "BF16" else torch.float16).float()
    assert float((kept_values - expanded).norm()) < 0.2 * float((expanded - weight).norm())


def gptq(weight: Tensor) -> Packed:
    quantized = quantize(weight, 4, 32)
    return gptq_parts(quantized, 4), quantized.weight


def fp8(weight: Tensor) -> Packed:
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale.reshape(1)}, stored.float() * scale


FORMATS = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq, "Q4_1", 0.02),
    "fp8": ({"quant_method": "fp8"}, fp8, "BF16", 0.003),
}
UP = "model.layers.0.mlp.up_proj.weight"
WIDE = {"hidden_size": 64, "intermediate_size": 128}


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_takes_about_what_it_took_on_disk(name: str, tmp_path: Path) -> None:
    settings, pack, kept, bound = FORMATS[name]
    save_quantized(tiny_llama(**WIDE), tmp_path, settings, of_layers(pack))
    checkpoint, kernels = open_checkpoint(tmp_path), c_kernels()
    parameters = Parameters(checkpoint, kernels, AS_STORED)
    assert parameters.kept_as(UP) == {"BF16": "bfloat16"}.get(kept, kept)
    stored = parameters.matrix(UP)
    assert not isinstance(stored, Tensor)
    assert stored.format == kept
    values = torch.from_numpy(to_float32(stored.rows, stored.format, stored.shape))
    expanded = checkpoint.tensor(UP)
    assert float((values - expanded).norm()) < bound * float(expanded.norm())
    small = weights_bytes(checkpoint.spec, kernels, "float32", parameters.kept_as)
    assert small < 0.7 * weights_bytes(checkpoint.spec, kernels, "float32")


def test_a_format_of_its_own_error_is_left(tmp_path: Path) -> None:
    """FP8 in bfloat16 is nearer to FP8 than that is to the weight."""
    weight = weight_of(64, 64)
    parts, _ = fp8(weight)
    matrix = Fp8Format(block=None).matrix("m", stored_as(parts))
    expanded = matrix.expand(parts)
    assert matrix.kept == "BF16"
    assert float((expanded.bfloat16().float() - expanded).norm()) < 0.1 * float((expanded - weight).norm())


def test_experts_stay_small_too(tmp_path: Path) -> None:
    model = tiny_model(
        Qwen3MoeConfig, hidden_size=64, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
        decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip
    save_quantized_experts(model, tmp_path, FORMATS["gptq"][0], gptq)
    checkpoint = open_checkpoint(tmp_path)
    name = "model.layers.0.mlp.experts.up_proj.weight"
    stored = Parameters(checkpoint, c_kernels(), AS_STORED).matrix(name)
    assert not isinstance(stored, Tensor)
    assert (stored.format, stored.shape) == ("Q4_1", (4, 64, 64))
    values = torch.from_numpy(to_float32(stored.rows, stored.format, stored.shape))
    torch.testing.assert_close(values, checkpoint.tensor(name), rtol=0, atol=0.002)
