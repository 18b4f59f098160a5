"""What a format says of one quantised matrix: the tensors that it is stored as, and how to expand them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from limelight.kernels.interface import StoredTensor

FLOATS = ("F16", "BF16", "F32")
"""Types of scales."""
FP8 = ("F8_E4M3", "F8_E5M2")
EXPONENTS = "F8_E8M0"
"""Powers of two, as scales."""


class Stored(NamedTuple):
    """A tensor as the header of its file describes it; `type` is safetensors' name ("I32", "F8_E4M3").

    `read` reads it, which only those of a few numbers are worth before a weight is asked for.
    """

    type: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


class Wanted(NamedTuple):
    """What a stored tensor must be: one of these types in one of these shapes."""

    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMatrix:
    """One matrix of a quantised module.

    Attributes:
        shape: [out, in] of the weight that it stands for.
        parts: name in the module ("qzeros") -> what must be stored there. Beside what is there, this names what is
            missing.
        expand: (part -> tensor) -> the weight, float32 [out, in], in memory of its own. It may raise CheckpointError
            where values contradict the shapes.
        kept: a format that holds the weight, or loses less of it than quantising did.
        pack: (part -> tensor) -> the weight in blocks of that format; None: that is for plain numbers.
        as_fp8: (part -> tensor) -> the weight in FP8 with a scale for each output, if that is how it is stored.
    """

    shape: tuple[int, int]
    parts: Mapping[str, Wanted]
    expand: Callable[[Mapping[str, Tensor]], Tensor]
    kept: str = "BF16"
    pack: Callable[[Mapping[str, Tensor]], StoredTensor] | None = None
    as_fp8: Callable[[Mapping[str, Tensor]], StoredTensor] | None = None


def plain_format(bits: int) -> str:
    """Plain numbers for integers of `bits` bits times a scale: bfloat16 would lose as much as eight of them did."""
    return "BF16" if bits <= 4 else "F16"


class QuantizationFormat(Protocol):
    """One format with the settings of one folder."""

    @property
    def title(self) -> str:
        """For messages ("GPTQ")."""
        ...

    def quantizes(self, stored: Mapping[str, Stored]) -> bool:
        """Whether a module with these tensors is quantised: what is stored decides, not the settings."""
        ...

    def matrix(self, module: str, stored: Mapping[str, Stored]) -> QuantizedMatrix:
        """The matrix of a module that is quantised.

        Args:
            module: name of the module, for messages and for what the settings say of it.
            stored: its tensors by their names in the module.

        Raises:
            CheckpointError: the tensor that says the shape is missing or impossible.
            UnsupportedModel: it is stored in a way that Limelight does not read.
        """
        ...
