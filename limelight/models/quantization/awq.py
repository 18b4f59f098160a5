"""AWQ (Lin et al. 2023, arXiv 2306.00978) as AutoAWQ stores it: 4-bit levels with a zero for each group.

GEMM, for a module [out, in]: `qweight` int32 [in, out / 8] and `qzeros` int32 [groups, out / 8], eight neighbouring
outputs in a word, even ones in its lower half; `scales` [groups, out]. GEMV: `qweight` int32 [out, in / 8] packed in
turn along the inputs, `qzeros` int32 [out, words] along the groups, and `scales` [out, 8 * words], both padded with
groups that are not used. weight = (level - zero) * scale.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.quantization.expansion import PACKED_FORMAT, Levels, can_pack, expand_rows, pack_rows, unpack
from limelight.models.quantization.gptq import packed_shape, read_group_size
from limelight.models.quantization.scheme import FLOATS, QuantizedMatrix, Stored, Wanted
from limelight.quoting import quoted

BITS = 4
PER_WORD = 8
PARTS = frozenset({"qweight", "qzeros", "scales"})
GEMM_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Place 0 is lowest: it holds output 0 of its word, place 1 output 2, and so on."""
VERSIONS = ("gemm", "gemv", "exllama")
"""exllama is stored as gemm."""


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """See `QuantizationFormat`.

    Attributes:
        group_size: inputs that share a scale; None: all.
        by_output: the GEMV layout.
    """

    group_size: int | None
    by_output: bool

    @property
    def title(self) -> str:
        """See `QuantizationFormat`."""
        return "AWQ"

    def quantizes(self, stored: Mapping[str, Stored]) -> bool:
        """See `QuantizationFormat`."""
        return not PARTS.isdisjoint(stored)

    def matrix(self, module: str, stored: Mapping[str, Stored]) -> QuantizedMatrix:
        """See `QuantizationFormat`."""
        packed = packed_shape(module, stored)
        if self.by_output:
            outputs, inputs = packed[0], packed[1] * PER_WORD
        else:
            inputs, outputs = packed[0], packed[1] * PER_WORD
        group_size = self.group_size or inputs
        if inputs % group_size:
            raise CheckpointError(f"{module} has {inputs} inputs, no multiple of its group_size, which is {group_size}")
        groups = inputs // group_size
        if self.by_output:
            words = _gemv_words(groups, group_size)
            parts = _parts(packed, scales=(outputs, words * PER_WORD), zeros=(outputs, words))
        else:
            parts = _parts(packed, scales=(groups, outputs), zeros=(groups, packed[1]))

        def gemm(tensors: Mapping[str, Tensor]) -> Levels:
            qweight = tensors["qweight"]
            return (
                (outputs, inputs),
                lambda start, stop: unpack(qweight[:, start // PER_WORD : -(-stop // PER_WORD)], BITS, GEMM_ORDER).t(),
                tensors["scales"].to(torch.float32).t().contiguous(),
                unpack(tensors["qzeros"], BITS, GEMM_ORDER).to(torch.float32).t().contiguous(),
            )

        def gemv(tensors: Mapping[str, Tensor]) -> Levels:
            qweight = tensors["qweight"]
            return (
                (outputs, inputs),
                lambda start, stop: unpack(qweight[start:stop], BITS),
                tensors["scales"][:, :groups].to(torch.float32),
                unpack(tensors["qzeros"], BITS)[:, :groups].to(torch.float32),
            )

        levels = gemv if self.by_output else gemm

        def expand(tensors: Mapping[str, Tensor]) -> Tensor:
            return expand_rows(*levels(tensors), group_size)

        if not can_pack(BITS, inputs, group_size):
            return QuantizedMatrix(shape=(outputs, inputs), parts=parts, expand=expand)
        return QuantizedMatrix(
            shape=(outputs, inputs),
            parts=parts,
            expand=expand,
            kept=PACKED_FORMAT,
            pack=lambda tensors: pack_rows(*levels(tensors), group_size),
        )


def read_awq(settings: Fields) -> AwqFormat:
    """The format that a `quantization_config` (or AutoAWQ's `quant_config.json`) describes.

    Raises:
        CheckpointError: a value is impossible.
        UnsupportedModel: Limelight does not read this kind.
    """
    bits = settings.integer("w_bit" if "w_bit" in settings else "bits", 1, 64, BITS)
    if bits != BITS:
        raise UnsupportedModel(f"{settings.source}: bits is {bits}; Limelight reads AWQ of 4 bits")
    name = next((name for name in ("version", "format", "checkpoint_format") if name in settings), "version")
    version = (settings.text(name) or "gemm").lower()
    if version not in VERSIONS:
        raise UnsupportedModel(
            f"{settings.source}: {name} is {quoted(version)}; Limelight reads AWQ as 'gemm' or 'gemv': "
            "use a repository in that format"
        )
    if not settings.flag("zero_point", default=True):
        raise UnsupportedModel(f"{settings.source}: zero_point is false; Limelight reads AWQ with zero points")
    group_name = "q_group_size" if "q_group_size" in settings else "group_size"
    return AwqFormat(group_size=read_group_size(settings, group_name), by_output=version == "gemv")


def _parts(packed: tuple[int, int], *, scales: tuple[int, int], zeros: tuple[int, int]) -> dict[str, Wanted]:
    return {
        "qweight": Wanted(("I32",), (packed,)),
        "scales": Wanted(FLOATS, (scales,)),
        "qzeros": Wanted(("I32",), (zeros,)),
    }


def _gemv_words(groups: int, group_size: int) -> int:
    """Words of zeros for an output: rounded up for the kernels of that layout, further for small groups."""
    multiple = {64: 2, 32: 4}.get(group_size, 1)
    words = math.ceil(groups / PER_WORD)
    return math.ceil(words / multiple) * multiple
