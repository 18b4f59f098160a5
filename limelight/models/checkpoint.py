"""A model's stored tensors behind one protocol, whatever the file format, under Hugging Face names.

Tensors are read one at a time and lazily, so that loading never needs the checkpoint twice in memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from limelight.errors import CheckpointError
from limelight.models.gguf.checkpoint import GgufCheckpoint
from limelight.models.loaded_model import SamplingDefaults
from limelight.models.spec import ModelSpec
from limelight.models.stored_blocks import StoredBlocks
from limelight.models.wording import listed

if TYPE_CHECKING:
    from torch import Tensor

HARMLESS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias|attn\.bias)$")
"""Buffers that older versions of transformers saved; they are recomputed, never read."""


class Checkpoint(Protocol):
    """Stored parameters, under the names that transformers gives them (`model.layers.0.self_attn.q_proj.weight`)."""

    @property
    def spec(self) -> ModelSpec:
        """What the model is. `tie_word_embeddings` says what the stored tensors really are."""
        ...

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """Sampling settings that the model's authors recommend."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        ...

    def names(self) -> Collection[str]:
        """Names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it. `name` is one of `names()`."""
        ...

    def dtype(self, name: str) -> str:
        """What `tensor` gives for a name, without reading it: one of `DTYPE_BYTES`."""
        ...

    def blocks(self, name: str) -> StoredBlocks | None:
        """What `tensor` gives as it is stored, if that is in blocks."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU: from safetensors in its stored dtype, quantised or from GGUF in float32.

        It may share memory with the file, so it is only read, never written. Thread-safe.

        Raises:
            UnsupportedModel: the tensor is stored in a format that Limelight does not read.
        """
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a model folder or a `.gguf` file, checking headers but reading no tensor.

    Raises:
        CheckpointError: something is missing, corrupt, or contradicts something else.
        UnsupportedModel: the architecture or format is not supported.
    """
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; give a model folder or a .gguf file")
    if path.suffix.lower() != ".gguf":
        raise CheckpointError(f"{path} is not a .gguf file; for safetensors, give the folder that holds config.json")
    return GgufCheckpoint(path)


def _open_folder(folder: Path) -> Checkpoint:
    # Imported only now: these import torch, which a GGUF file does without.
    from limelight.models.quantization.checkpoint import QuantizedCheckpoint
    from limelight.models.quantization.settings import read_quantization
    from limelight.models.safetensors.checkpoint import SafetensorsCheckpoint
    from limelight.models.safetensors.mxfp4_experts import mxfp4_experts
    from limelight.models.safetensors.stacked_experts import stacked_experts

    stored = SafetensorsCheckpoint(folder)
    quantization = read_quantization(folder)
    plain = mxfp4_experts(stored) if quantization is None else QuantizedCheckpoint(stored, quantization)
    return stacked_experts(plain)


def check_parameters(checkpoint: Checkpoint, required: Mapping[str, tuple[int, ...]]) -> None:
    """Compare what a model needs with what is stored, before anything is read.

    Args:
        checkpoint: the stored side.
        required: name -> shape of every parameter of the model.

    Raises:
        CheckpointError: names the missing, the misshapen and the unused tensors, all in one message.
    """
    present = set(checkpoint.names())
    missing = [name for name in required if name not in present]
    misshapen = [
        f"{name} is {list(checkpoint.shape(name))}, expected {list(shape)}"
        for name, shape in required.items()
        if name in present and checkpoint.shape(name) != shape
    ]
    harmless = {"lm_head.weight"} if checkpoint.spec.tie_word_embeddings else set()
    unused = sorted(
        name
        for name in present - required.keys() - harmless
        if not HARMLESS.search(name) and not _adds_nothing(checkpoint, name)
    )

    faults = [
        f"{len(faulty)} {kind}: {listed(faulty)}"
        for kind, faulty in (("missing", missing), ("misshapen", misshapen), ("unused", unused))
        if faulty
    ]
    if faults:
        raise CheckpointError(
            f"the tensors of {checkpoint.files[0].parent} do not match {checkpoint.spec.source}: {'; '.join(faults)}"
        )


def check_finite(tensor: Tensor | NDArray[np.float32], name: str, source: str) -> None:
    """Refuse a parameter that no model can have: torch's attention on the CPU takes a row of them for zeros.

    Raises:
        CheckpointError: it holds an infinity or what is not a number, in the dtype that it has.
    """
    if 0 in tensor.shape:
        return
    # Several times as fast as isfinite, and not a number if any value is not.
    low, high = (tensor.min(), tensor.max()) if isinstance(tensor, np.ndarray) else tensor.aminmax()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CheckpointError(
            f"{source}: {name} holds values that are not finite in {str(tensor.dtype).removeprefix('torch.')} (its "
            f"range is {float(low)} to {float(high)}); download it again, or use a wider dtype"
        )


def _adds_nothing(checkpoint: Checkpoint, name: str) -> bool:
    """Whether it is a bias of zeros: some tools give all quantised modules one, whether the model has it or not."""
    if not name.endswith(".bias") or len(checkpoint.shape(name)) != 1:
        return False
    return not bool(checkpoint.tensor(name).any())
