"""GPTQ (Frantar et al. 2022, arXiv 2210.17323) as AutoGPTQ and GPTQModel store it.

A module [out, in] has `qweight` int32 [in * bits / 32, out], packed along the inputs; `scales` [groups, out]; `qzeros`
int32 [groups, out * bits / 32], packed along the outputs; and `g_idx` int32 [in], the group of each input, which is in
turn unless the inputs were sorted by their activations. weight = (level - zero) * scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.quantization.expansion import (
    PACKED_FORMAT,
    WORD,
    Levels,
    can_pack,
    expand_rows,
    pack_rows,
    unpack,
)
from limelight.models.quantization.scheme import FLOATS, QuantizedMatrix, Stored, Wanted, plain_format
from limelight.models.spec import MAX_WIDTH
from limelight.quoting import quoted

BITS = (2, 3, 4, 8)
PARTS = frozenset({"qweight", "qzeros", "scales", "g_idx"})
CHECKPOINT_FORMATS = ("gptq", "gptq_v2")


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """See `QuantizationFormat`.

    Attributes:
        bits: of one level.
        group_size: inputs that share a scale; None: all.
        zeros_less_one: the older layout, "gptq", stores each zero minus one; "gptq_v2" stores it as it is.
    """

    bits: int
    group_size: int | None
    zeros_less_one: bool

    @property
    def title(self) -> str:
        """See `QuantizationFormat`."""
        return "GPTQ"

    def quantizes(self, stored: Mapping[str, Stored]) -> bool:
        """See `QuantizationFormat`."""
        return not PARTS.isdisjoint(stored)

    def matrix(self, module: str, stored: Mapping[str, Stored]) -> QuantizedMatrix:
        """See `QuantizationFormat`."""
        packed = packed_shape(module, stored)
        if packed[0] * WORD % self.bits:
            raise CheckpointError(
                f"{module}.qweight is {list(packed)}, which is no whole number of {self.bits}-bit rows"
            )
        inputs, outputs = packed[0] * WORD // self.bits, packed[1]
        if outputs * self.bits % WORD:
            raise UnsupportedModel(
                f"{module}.qweight has {outputs} outputs; {self.bits}-bit GPTQ needs a multiple of "
                f"{WORD if WORD % self.bits else WORD // self.bits}"
            )
        group_size = self.group_size or inputs
        groups = -(-inputs // group_size)
        parts = {
            "qweight": Wanted(("I32",), (packed,)),
            "scales": Wanted(FLOATS, ((groups, outputs),)),
            "qzeros": Wanted(("I32",), ((groups, outputs * self.bits // WORD),)),
        }
        if "g_idx" in stored:
            parts["g_idx"] = Wanted(("I32", "I64"), ((inputs,),))

        def levels(tensors: Mapping[str, Tensor]) -> Levels:
            qweight = tensors["qweight"]
            return (
                (outputs, inputs),
                lambda start, stop: unpack(qweight[:, start:stop].t().contiguous(), self.bits),
                tensors["scales"].to(torch.float32).t().contiguous(),
                self._zeros(tensors["qzeros"]).t().contiguous(),
            )

        def expand(tensors: Mapping[str, Tensor]) -> Tensor:
            columns: int | Tensor = group_size
            if "g_idx" in tensors:
                columns = group_of_columns(tensors["g_idx"], groups, group_size, f"{module}.g_idx")
            return expand_rows(*levels(tensors), columns)

        if not can_pack(self.bits, inputs, group_size) or not _in_turn(stored.get("g_idx"), inputs, group_size):
            return QuantizedMatrix(shape=(outputs, inputs), parts=parts, expand=expand, kept=plain_format(self.bits))
        return QuantizedMatrix(
            shape=(outputs, inputs),
            parts=parts,
            expand=expand,
            kept=PACKED_FORMAT,
            pack=lambda tensors: pack_rows(*levels(tensors), group_size),
        )

    def _zeros(self, packed: Tensor) -> Tensor:
        """float32 [groups, out]."""
        if self.zeros_less_one and WORD % self.bits == 0:
            # One is added to all zeros of a word at once, carries included: it undoes what GPTQModel writes, which
            # takes one from each with borrows where a zero is 0. Without such zeros it is the same as one by one.
            ones = sum(1 << place for place in range(0, WORD, self.bits))
            wide = (packed.to(torch.int64) + ones) & (2**WORD - 1)
            return unpack(_as_int32(wide), self.bits).to(torch.float32)
        zeros = unpack(packed, self.bits)
        if self.zeros_less_one:
            zeros = (zeros + 1) & ((1 << self.bits) - 1)
        return zeros.to(torch.float32)


def read_gptq(settings: Fields) -> GptqFormat:
    """The format that a `quantization_config` (or `quantize_config.json`) of GPTQ describes.

    Raises:
        CheckpointError: a value is impossible.
        UnsupportedModel: Limelight does not read this kind.
    """
    bits = settings.integer("bits", 1, 64)
    if bits not in BITS:
        raise UnsupportedModel(f"{settings.source}: bits is {bits}; Limelight reads GPTQ of 2, 3, 4 or 8 bits")
    layout = settings.text("checkpoint_format") or settings.text("format") or "gptq"
    if layout not in CHECKPOINT_FORMATS or settings.flag("is_marlin_format", default=False):
        raise UnsupportedModel(
            f"{settings.source}: checkpoint_format is {quoted(layout)}; Limelight reads GPTQ as 'gptq' or 'gptq_v2': "
            "use a repository in that format"
        )
    if settings.group("dynamic") is not None:
        raise UnsupportedModel(
            f"{settings.source}: dynamic gives modules settings of their own, which Limelight does not read; "
            "use a repository that is quantised alike everywhere"
        )
    if (settings.text("pack_dtype") or "int32") != "int32":
        raise UnsupportedModel(
            f"{settings.source}: pack_dtype is {quoted(settings.text('pack_dtype'))}; it must be 'int32'"
        )
    return GptqFormat(bits=bits, group_size=read_group_size(settings), zeros_less_one=layout == "gptq")


def read_group_size(settings: Fields, name: str = "group_size") -> int | None:
    """Inputs that share a scale, or None for all of them (-1).

    Raises:
        CheckpointError: zero or something else impossible.
    """
    size = settings.integer(name, -1, MAX_WIDTH, 128)
    if size == 0:
        raise settings.refusal(name, size, "it must be -1 or at least 1")
    return None if size == -1 else size


def packed_shape(module: str, stored: Mapping[str, Stored]) -> tuple[int, int]:
    """Shape of `qweight`.

    Raises:
        CheckpointError: it is missing or no matrix.
    """
    packed = stored.get("qweight")
    if packed is None:
        raise CheckpointError(f"{module}.qweight is missing beside {module}.{next(iter(stored))}")
    if len(packed.shape) != 2 or 0 in packed.shape:
        raise CheckpointError(f"{module}.qweight is {list(packed.shape)}; it must be a matrix")
    return packed.shape[0], packed.shape[1]


def group_of_columns(index: Tensor, groups: int, group_size: int, name: str) -> int | Tensor:
    """What `expand_rows` takes as its columns: the size of the groups where the index only counts up.

    Raises:
        CheckpointError: a group that does not exist.
    """
    index = index.to(torch.int64)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise CheckpointError(f"{name} names groups from {int(index.min())} to {int(index.max())}; there are {groups}")
    in_turn = torch.arange(index.numel()) // group_size
    return group_size if torch.equal(index, in_turn) else index


def _in_turn(index: Stored | None, inputs: int, group_size: int) -> bool:
    """Whether neighbouring inputs share a group; an index of another shape is refused elsewhere."""
    if index is None or index.shape != (inputs,):
        return True
    return torch.equal(index.read().to(torch.int64), torch.arange(inputs) // group_size)


def _as_int32(wide: Tensor) -> Tensor:
    """int64 from 0 to 2**32 - 1 -> the same bits in int32."""
    return torch.where(wide >= 2**31, wide - 2**32, wide).to(torch.int32)
