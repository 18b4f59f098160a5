"""Parameters in the form in which kernels want them."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from limelight.config import EngineConfig
from limelight.errors import CheckpointError
from limelight.kernels.interface import StoredTensor
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.torch_dtypes import name_of
from limelight.models.checkpoint import open_checkpoint
from limelight.models.gguf.blocks import BLOCKS, is_finite, to_float32
from limelight.models.parameters import Parameters
from limelight.models.precision import Precision, choose_precision
from tests.models.families.tiny_families import TINY_FAMILIES
from tests.models.gguf.written_models import write_model
from tests.models.tiny_models import c_kernels, saved, tiny_llama

AS_STORED = Precision(values="float32", kv="bfloat16", weights=None)
MATRIX = "model.layers.0.mlp.up_proj.weight"


class TakesBlocks(ReferenceKernels):
    stored_formats = frozenset({"Q8_0"})


def parameters_of(path: Path, precision: Precision = AS_STORED) -> Parameters:
    return Parameters(open_checkpoint(path), TakesBlocks("cpu"), precision)


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "F16", "BF16", "F32"])
def test_matrices_of_gguf_files_come_as_they_are_stored(kind: str, tmp_path: Path) -> None:
    path = write_model(tiny_llama(), tmp_path / "m.gguf", kinds={"ffn_up.weight": kind})
    parameters = parameters_of(path)
    values = open_checkpoint(path).tensor(MATRIX)
    matrix = parameters.matrix(MATRIX)
    if kind == "Q8_0":
        assert isinstance(matrix, StoredTensor)
        assert parameters.kept_as(MATRIX) == matrix.format == "Q8_0"
        np.testing.assert_array_equal(to_float32(matrix.rows, matrix.format, matrix.shape), values.numpy())
        return
    assert isinstance(matrix, torch.Tensor)
    assert parameters.kept_as(MATRIX) == name_of(matrix.dtype)
    assert matrix.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    torch.testing.assert_close(matrix.float(), values, rtol=0, atol=0)
    assert parameters.plain(MATRIX).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrices_of_safetensors_keep_their_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    saved(tiny_llama().to(dtype), tmp_path)
    parameters = parameters_of(tmp_path)
    assert parameters.matrix(MATRIX).dtype == dtype
    assert parameters.kept_as(MATRIX) == name_of(dtype)
    assert parameters.plain(MATRIX).dtype == torch.float32


def test_precision_of_one_dtype_expands_everything(tmp_path: Path) -> None:
    path = write_model(tiny_llama(), tmp_path / "m.gguf", kinds={"ffn_up.weight": "Q8_0"})
    parameters = parameters_of(path, Precision.uniform("bfloat16"))
    assert parameters.matrix(MATRIX).dtype == torch.bfloat16
    assert parameters.kept_as(MATRIX) == "bfloat16"
    assert parameters.plain(MATRIX).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", BLOCKS)
def test_scales_tell_whether_all_values_of_blocks_are_finite(kind: str) -> None:
    """Any byte of a block turned into its worst: the scales alone find what the values show."""
    number_format, _ = BLOCKS[kind]
    quantised = np.random.default_rng(3).integers(0, 60, (4, 3 * number_format.block_bytes), np.uint8)
    found = set()
    for place in range(number_format.block_bytes):
        blocks = quantised.copy()
        blocks[2, number_format.block_bytes + place] = 0xFF
        values = to_float32(blocks, kind, (4, 3 * number_format.block_size))
        finite = bool(np.isfinite(values).all())
        assert is_finite(kind, blocks) == finite, place
        found.add(finite)
    assert found == {True, False}


def test_blocks_with_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    path = write_model(model, tmp_path / "m.gguf", kinds={"ffn_up.weight": "Q8_0"})
    start = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.ffn_up.weight")
    damaged = bytearray(path.read_bytes())
    damaged[start.data_offset : start.data_offset + 2] = np.array(np.inf, np.float16).tobytes()
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight holds Q8_0 blocks whose scales are not finite"):
        parameters_of(path).matrix(MATRIX)


@pytest.mark.parametrize(("setting", "of_matrices"), [("int8", "Q8_0"), ("int4", "Q4_1")])
def test_quantised_while_loading_matrices_take_fewer_bits_and_what_has_few_stays(
    setting: str, of_matrices: str, tmp_path: Path
) -> None:
    kernels = c_kernels()
    precision = choose_precision(EngineConfig(quantize=setting), "float32", kernels)
    saved(TINY_FAMILIES["qwen2_moe"](hidden_size=64, moe_intermediate_size=64), tmp_path / "moe")
    checkpoint = open_checkpoint(tmp_path / "moe")
    parameters = Parameters(checkpoint, kernels, precision)
    layer = "model.layers.0"
    kept = {
        f"{layer}.self_attn.q_proj.weight": of_matrices,
        f"{layer}.mlp.experts.down_proj.weight": of_matrices,
        f"{layer}.mlp.gate.weight": "float32",
        f"{layer}.mlp.shared_expert_gate.weight": "float32",
        "model.embed_tokens.weight": "Q8_0",
        "lm_head.weight": "Q8_0",
    }
    for name, expected in kept.items():
        assert parameters.kept_as(name) == expected, name
        matrix = parameters.matrix(name)
        values = checkpoint.tensor(name)
        if isinstance(matrix, torch.Tensor):
            assert name_of(matrix.dtype) == expected
            continue
        assert (matrix.format, matrix.shape) == (expected, tuple(values.shape))
        expanded = torch.from_numpy(to_float32(matrix.rows, matrix.format, matrix.shape))
        assert float((expanded - values).norm() / values.norm()) < (0.01 if expected == "Q8_0" else 0.12)

    stored = open_checkpoint(write_model(tiny_llama(), tmp_path / "m.gguf", kinds={"ffn_up.weight": "Q4_0"}))
    assert Parameters(stored, kernels, precision).kept_as(MATRIX) == "Q4_0"
