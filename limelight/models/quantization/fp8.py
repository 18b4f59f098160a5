"""Eight-bit floating point: a weight of that type beside its scale, which multiplies it.

`weight_scale_inv` has one number for each block, [128, 128] in DeepSeek-V3 (arXiv 2412.19437, section 3.3) and Qwen 3,
the last blocks of a row or column cut off by the edge of the weight; without a block size, `weight_scale` (or the same
`weight_scale_inv`) has one number, or one for each output. ModelOpt also writes NVFP4: see `fp4.py`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.kernels.interface import StoredTensor
from limelight.kernels.triton.weight_formats import fp8_stored
from limelight.models.fields import Fields
from limelight.models.quantization.expansion import expand_rows, per_row, rows_of_blocks
from limelight.models.quantization.fp4 import NVFP4_GROUP, expand_fp4
from limelight.models.quantization.scheme import EXPONENTS, FLOATS, FP8, QuantizedMatrix, Stored, Wanted
from limelight.models.spec import MAX_WIDTH
from limelight.quoting import quoted

SCALES = ("weight_scale_inv", "weight_scale")
NVFP4_SCALE = "weight_scale_2"
FP8_NAN = 0x7F
"""The bits of e4m3's only value that is not finite, beside its sign."""


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """See `QuantizationFormat`.

    Attributes:
        block: (outputs, inputs) that share a scale; None: one scale for all, or one for each output.
    """

    block: tuple[int, int] | None

    @property
    def title(self) -> str:
        """See `QuantizationFormat`."""
        return "FP8"

    def quantizes(self, stored: Mapping[str, Stored]) -> bool:
        """See `QuantizationFormat`."""
        return any(scale in stored for scale in SCALES) or ("weight" in stored and stored["weight"].type in FP8)

    def matrix(self, module: str, stored: Mapping[str, Stored]) -> QuantizedMatrix:
        """See `QuantizationFormat`."""
        outputs, inputs = matrix_shape(module, "weight", stored)
        scale = next((name for name in SCALES if name in stored), SCALES[0] if self.block else SCALES[1])
        shapes = scalar_shapes() | row_shapes(outputs)
        if self.block:
            shapes = {(math.ceil(outputs / self.block[0]), math.ceil(inputs / self.block[1]))}
        parts = {
            "weight": Wanted(FP8, ((outputs, inputs),)),
            scale: Wanted((*FLOATS, EXPONENTS), tuple(shapes)),
        }

        def expand(tensors: Mapping[str, Tensor]) -> Tensor:
            scales = tensors[scale].to(torch.float32)
            scales = rows_of_blocks(scales, outputs, self.block[0]) if self.block else per_row(scales, outputs)
            columns = self.block[1] if self.block else inputs
            weight = tensors["weight"]
            return expand_rows((outputs, inputs), lambda start, stop: weight[start:stop], scales, None, columns)

        return QuantizedMatrix(
            shape=(outputs, inputs),
            parts=parts,
            expand=expand,
            as_fp8=None if self.block else as_fp8_rows(module, stored, scale, outputs),
        )


@dataclass(frozen=True, slots=True)
class ModelOptNvfp4Format:
    """See `QuantizationFormat`: `weight` uint8 [out, in / 2], `weight_scale` FP8 [out, in / 16], `weight_scale_2`."""

    @property
    def title(self) -> str:
        """See `QuantizationFormat`."""
        return "NVFP4"

    def quantizes(self, stored: Mapping[str, Stored]) -> bool:
        """See `QuantizationFormat`."""
        return (
            "weight_scale" in stored or NVFP4_SCALE in stored or ("weight" in stored and stored["weight"].type == "U8")
        )

    def matrix(self, module: str, stored: Mapping[str, Stored]) -> QuantizedMatrix:
        """See `QuantizationFormat`."""
        outputs, pairs = matrix_shape(module, "weight", stored)
        parts = {
            "weight": Wanted(("U8",), ((outputs, pairs),)),
            "weight_scale": Wanted(("F8_E4M3",), ((outputs, math.ceil(pairs * 2 / NVFP4_GROUP)),)),
            NVFP4_SCALE: Wanted(("F32",), tuple(scalar_shapes())),
        }

        def expand(tensors: Mapping[str, Tensor]) -> Tensor:
            scales = tensors["weight_scale"].to(torch.float32) * tensors[NVFP4_SCALE].reshape(())
            return expand_fp4(tensors["weight"], scales, NVFP4_GROUP)

        return QuantizedMatrix(shape=(outputs, pairs * 2), parts=parts, expand=expand)


def read_fp8(settings: Fields) -> Fp8Format:
    """The format that a `quantization_config` of `quant_method` fp8 describes; activations are not quantised here.

    Raises:
        CheckpointError: a value is impossible.
    """
    return Fp8Format(block=read_block(settings, "weight_block_size"))


def read_modelopt(settings: Fields) -> Fp8Format | ModelOptNvfp4Format:
    """The format that ModelOpt's `hf_quant_config.json`, or the same in `config.json`, describes.

    Raises:
        CheckpointError: a value is impossible.
        UnsupportedModel: Limelight does not read this algorithm.
    """
    settings = settings.group("quantization") or settings
    algorithm = settings.text("quant_algo")
    if algorithm == "FP8":
        return Fp8Format(block=None)
    if algorithm == "NVFP4":
        return ModelOptNvfp4Format()
    raise UnsupportedModel(
        f"{settings.source}: quant_algo is {quoted(algorithm)}; Limelight reads FP8 and NVFP4 of ModelOpt: "
        "use the unquantised repository, or a GGUF file"
    )


def read_block(settings: Fields, name: str) -> tuple[int, int] | None:
    """(outputs, inputs) of a block, or None.

    Raises:
        CheckpointError: anything but two positive integers.
    """
    block = settings.values.get(name)
    if block is None:
        return None
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(side) is int and 1 <= side <= MAX_WIDTH for side in block)
    ):
        raise settings.refusal(name, block, f"it must be two integers from 1 to {MAX_WIDTH}")
    return block[0], block[1]


def matrix_shape(module: str, part: str, stored: Mapping[str, Stored]) -> tuple[int, int]:
    """Shape of the tensor that is the matrix.

    Raises:
        CheckpointError: it is missing or no matrix.
    """
    matrix = stored.get(part)
    if matrix is None:
        raise CheckpointError(f"{module}.{part} is missing beside {module}.{next(iter(stored))}")
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise CheckpointError(f"{module}.{part} is {list(matrix.shape)}; it must be a matrix")
    return matrix.shape[0], matrix.shape[1]


def as_fp8_rows(
    module: str, stored: Mapping[str, Stored], scale: str, outputs: int
) -> Callable[[Mapping[str, Tensor]], StoredTensor] | None:
    """What puts a weight with one scale, or one for each output, into rows of FP8; None for another type of 8 bits."""
    weight = stored.get("weight")
    if weight is None or weight.type != "F8_E4M3":
        return None

    def rows(tensors: Mapping[str, Tensor]) -> StoredTensor:
        codes, scales = tensors["weight"], per_row(tensors[scale].to(torch.float32), outputs)
        if bool((codes.view(torch.uint8) & FP8_NAN == FP8_NAN).any()) or not bool(scales.isfinite().all()):
            raise CheckpointError(f"{module} holds FP8 values that are not finite; download it again")
        return fp8_stored(codes, scales)

    return rows


def scalar_shapes() -> set[tuple[int, ...]]:
    """Shapes in which tools store one number."""
    return {(), (1,), (1, 1)}


def row_shapes(outputs: int) -> set[tuple[int, ...]]:
    """Shapes in which tools store one number for each output."""
    return {(outputs,), (outputs, 1)}
