"""A folder of quantised weights, seen as the plain ones that they stand for."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from limelight.errors import CheckpointError
from limelight.kernels.interface import StoredTensor
from limelight.models.quantization.scheme import QuantizationFormat, QuantizedMatrix, Stored
from limelight.models.safetensors.checkpoint import HEAD, SafetensorsCheckpoint, SafetensorsFiles
from limelight.models.stored_blocks import StoredBlocks
from limelight.models.wording import listed

WEIGHT = "weight"
ACTIVATION_PARTS = frozenset(
    {
        "activation_scale", "input_scale", "input_zero_point", "input_global_scale", "output_scale",
        "output_zero_point", "q_scale", "k_scale", "v_scale", "k_zero_point", "v_zero_point", "prob_output_scale",
    }
)  # fmt: skip
"""Scales of activations and of the KV cache, which are computed in full precision here."""


class QuantizedTensors:
    """The tensors of a folder. A quantised module has one `weight`, expanded to float32 when read as a tensor.

    The stored tensors decide which modules are quantised; lists of exceptions in the settings are not needed.
    """

    def __init__(self, stored: SafetensorsFiles, quantization: QuantizationFormat) -> None:
        """Check all quantised modules against the settings; nothing of size is read.

        Raises:
            CheckpointError: names the parts that are missing, misshapen or of another type, all in one message.
            UnsupportedModel: a module is stored in a way that Limelight does not read.
        """
        self._stored = stored
        self._matrices: dict[str, tuple[str, QuantizedMatrix]] = {}
        hidden: set[str] = set()
        faults: list[str] = []
        for module, parts in _modules(stored).items():
            hidden.update(f"{module}.{part}" for part in parts if part in ACTIVATION_PARTS)
            if not quantization.quantizes(parts):
                continue
            # Settings and messages name it as its file does.
            stored_module = stored.stored_name(f"{module}.{next(iter(parts))}").rpartition(".")[0]
            try:
                matrix = quantization.matrix(stored_module, parts)
            except CheckpointError as error:
                faults.append(error.message)
                continue
            faults += _faults(stored_module, parts, matrix)
            hidden.update(f"{module}.{part}" for part in matrix.parts)
            self._matrices[f"{module}.{WEIGHT}"] = (module, matrix)
        if faults:
            raise CheckpointError(
                f"the {quantization.title} tensors of {stored.files[0].parent} do not match its settings: "
                f"{listed(faults, separator='; ')}"
            )
        self._names = dict.fromkeys(name for name in stored.names() if name not in hidden) | dict.fromkeys(
            self._matrices
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors."""
        return self._stored.files

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as stored: expanded, they take more."""
        return self._stored.stored_bytes

    def names(self) -> Collection[str]:
        """Names of all tensors of the unquantised model, and of stored ones that belong to nothing."""
        return self._names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self._matrices[name][1].shape if name in self._matrices else self._stored.shape(name)

    def type(self, name: str) -> str:
        """What a tensor comes out as, in safetensors' words: float32 if it is expanded."""
        return "F32" if name in self._matrices else self._stored.type(name)

    def dtype(self, name: str) -> str:
        """What `tensor` gives, without reading it."""
        return "float32" if name in self._matrices else self._stored.dtype(name)

    def blocks(self, name: str) -> StoredBlocks | None:
        """A quantised matrix in blocks, or as plain numbers of 16 bits, whichever loses nothing that matters."""
        if name not in self._matrices:
            return None
        matrix = self._matrices[name][1]
        closest = None if matrix.as_fp8 is None else StoredBlocks("FP8", partial(self._as_fp8, name))
        return StoredBlocks(matrix.kept, partial(self._kept, name), is_exact=False, closest=closest)

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU: a quantised matrix in float32, any other as it is stored.

        Raises:
            CheckpointError: what is stored contradicts itself.
            UnsupportedModel: a plain tensor does not hold floating-point numbers of 16 or 32 bits.
        """
        if name not in self._matrices:
            return self._stored.tensor(name)
        return self._matrices[name][1].expand(self._parts(name))

    def _kept(self, name: str) -> StoredTensor:
        matrix, parts = self._matrices[name][1], self._parts(name)
        if matrix.pack is not None:
            return matrix.pack(parts)
        values = matrix.expand(parts).to(torch.bfloat16 if matrix.kept == "BF16" else torch.float16)
        return StoredTensor(matrix.kept, matrix.shape, values.view(torch.uint8).numpy())

    def _as_fp8(self, name: str) -> StoredTensor:
        as_fp8 = self._matrices[name][1].as_fp8
        assert as_fp8 is not None, "asked for only where it is"
        return as_fp8(self._parts(name))

    def _parts(self, name: str) -> dict[str, Tensor]:
        module, matrix = self._matrices[name]
        return {part: self._stored.packed(f"{module}.{part}") for part in matrix.parts}


class QuantizedCheckpoint(QuantizedTensors):
    """See `Checkpoint`."""

    def __init__(self, stored: SafetensorsCheckpoint, quantization: QuantizationFormat) -> None:
        """Check all quantised modules against the settings; raises like `QuantizedTensors`."""
        super().__init__(stored, quantization)
        self.sampling_defaults = stored.sampling_defaults
        self.spec = stored.spec
        if stored.spec.tie_word_embeddings and HEAD in self._matrices:
            self.spec = msgspec.structs.replace(stored.spec, tie_word_embeddings=False)


def _modules(stored: SafetensorsFiles) -> dict[str, dict[str, Stored]]:
    """Module -> its tensors by their names in it."""
    modules: dict[str, dict[str, Stored]] = {}
    for name in stored.names():
        module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = Stored(
            stored.type(name), stored.shape(name), partial(stored.packed, name)
        )
    return modules


def _faults(module: str, stored: Mapping[str, Stored], matrix: QuantizedMatrix) -> list[str]:
    faults = []
    for part, wanted in matrix.parts.items():
        found = stored.get(part)
        if found is None:
            faults.append(f"{module}.{part} is missing")
        elif found.shape not in wanted.shapes:
            shapes = " or ".join(str(list(shape)) for shape in wanted.shapes)
            faults.append(f"{module}.{part} is {list(found.shape)}, expected {shapes}")
        elif found.type not in wanted.types:
            faults.append(f"{module}.{part} is stored as {found.type}, expected {' or '.join(wanted.types)}")
    if WEIGHT in stored and WEIGHT not in matrix.parts:
        faults.append(f"{module}.{WEIGHT} is stored beside {module}.{next(iter(matrix.parts))}: remove one of them")
    return faults
