"""What of a checkpoint Triton's kernels take as it is stored, what is made smaller, and what stays in 16 bits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from limelight.config import EngineConfig
from limelight.errors import CheckpointError
from limelight.kernels.interface import LinearSegment, StoredTensor
from limelight.kernels.triton.attention import Processor
from limelight.kernels.triton.kernels import TritonKernels
from limelight.models.checkpoint import open_checkpoint
from limelight.models.parameters import Parameters
from limelight.models.precision import choose_precision
from tests.models.quantization.quantized_models import Packed, of_layers, save_quantized
from tests.models.tiny_models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
QUERY, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


def by_output(weight: Tensor) -> Packed:
    scales = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def parameters(folder: Path, *, capability: int = 90, quantize: str = "auto", dtype: str = "bfloat16") -> Parameters:
    kernels = TritonKernels("cpu", Processor(capability=capability, num_processors=2))
    checkpoint = open_checkpoint(folder)
    return Parameters(
        checkpoint, kernels, choose_precision(EngineConfig(quantize=quantize, dtype=dtype), "bfloat16", kernels)
    )


@pytest.fixture
def fp8_folder(tmp_path: Path) -> Path:
    save_quantized(tiny_llama(), tmp_path, {"quant_method": "fp8"}, of_layers(by_output))
    return tmp_path


def test_fp8_is_multiplied_as_it_is_stored_where_the_processor_can(fp8_folder: Path) -> None:
    ours = parameters(fp8_folder)
    assert (ours.kept_as(QUERY), ours.kept_as(EMBEDDING)) == ("FP8", "bfloat16")
    stored = ours.matrix(QUERY)
    assert isinstance(stored, StoredTensor)
    kernels = TritonKernels("cpu", Processor(capability=90, num_processors=2))
    product = kernels.linear(torch.eye(stored.shape[1]).bfloat16(), kernels.pack_linear([LinearSegment(weight=stored)]))
    exact = open_checkpoint(fp8_folder).tensor(QUERY)
    assert float((product.t().float() - exact).abs().max()) <= float(exact.abs().max()) / 128
    assert isinstance(ours.matrix(EMBEDDING), Tensor)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"capability": 80}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"quantize": "none"}, "bfloat16"),
        ({"quantize": "fp8"}, "FP8"),
    ],
)
def test_elsewhere_it_is_expanded(fp8_folder: Path, settings: dict[str, object], kept: str) -> None:
    assert parameters(fp8_folder, **settings).kept_as(QUERY) == kept  # type: ignore[arg-type]


def test_plain_weights_are_made_smaller_where_they_fit(tmp_path: Path) -> None:
    tiny_llama(hidden_size=64, intermediate_size=72).save_pretrained(tmp_path)
    ours = parameters(tmp_path, quantize="int4")
    assert ours.kept_as(QUERY) == "INT4_64"
    assert ours.kept_as(DOWN) == "bfloat16"  # 72 inputs are no groups of 64
    assert ours.kept_as(EMBEDDING) == "bfloat16"
    stored = ours.matrix(QUERY)
    assert isinstance(stored, StoredTensor)
    assert stored.format == "INT4_64"
    down = ours.matrix(DOWN)
    assert isinstance(down, Tensor)
    assert down.dtype == torch.bfloat16


def test_codes_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def broken(weight: Tensor) -> Packed:
        parts, exact = by_output(weight)
        parts["weight"].view(torch.uint8)[0, 0] = 0x7F
        return parts, exact

    save_quantized(tiny_llama(), tmp_path, {"quant_method": "fp8"}, of_layers(broken))
    with pytest.raises(CheckpointError, match="holds FP8 values that are not finite"):
        parameters(tmp_path).matrix(QUERY)
