"""A GGUF file, or all parts of a split one, as a `Checkpoint`: Hugging Face names, and query and key rows in the order
that those names promise.

GGUF files of the llama architecture interleave each head's query and key rows, so that llama.cpp rotates neighbouring
pairs; transformers (and Limelight) rotate dimension i with i + head_dim / 2. Rows move whole, so quantised blocks stay
as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from limelight.errors import CheckpointError
from limelight.kernels.interface import StoredTensor
from limelight.models.fields import Fields
from limelight.models.gguf.blocks import to_float32
from limelight.models.gguf.parts import GgufParts
from limelight.models.gguf.rope import FACTOR_TENSORS
from limelight.models.gguf.spec import read_gguf_architecture, read_gguf_sampling_defaults, read_gguf_spec
from limelight.models.gguf.tensor_names import LAYER_TENSOR, hugging_face_name
from limelight.models.spec import MAX_HEAD_DIM
from limelight.models.stored_blocks import StoredBlocks

if TYPE_CHECKING:
    from torch import Tensor

ROW_VECTOR = ".mlp.shared_expert_gate.weight"
"""End of the name of a matrix of one row, which GGUF stores as a vector."""


class GgufCheckpoint:
    """See `Checkpoint`. Tensors come out in float32 and in memory of their own.

    Attributes:
        metadata: everything else in the file, such as the tokenizer (`tokenizer.ggml.*`) and the chat template.
    """

    def __init__(self, path: Path) -> None:
        """Open a file, with the others if it is one of several parts, and check the headers.

        Raises:
            CheckpointError: the file is corrupt, or lacks or contradicts something.
            UnsupportedModel: another architecture or number format.
        """
        self._parts = GgufParts(path)
        self.metadata = self._parts.metadata
        self.files = self._parts.paths
        self.stored_bytes = sum(tensor.num_bytes for tensor in self._parts.tensors.values())
        fields = Fields(self.metadata, str(self.files[0]))
        architecture = read_gguf_architecture(fields)
        self._interleaved = architecture.interleaved
        if len(getattr(self._parts.tensors.get("token_embd.weight"), "shape", ())) != 2:
            raise CheckpointError(f"{path} has no two-dimensional token_embd.weight; it holds no language model")
        self.spec = read_gguf_spec(fields, self._parts.tensors, self._factors())
        self.sampling_defaults = read_gguf_sampling_defaults(fields)
        self._gguf_names: dict[str, str] = {}
        for stored_name in self._parts.tensors:
            if stored_name in FACTOR_TENSORS:
                continue
            name = hugging_face_name(stored_name, architecture.names)
            if name in self._gguf_names:
                raise CheckpointError(
                    f"{path} holds both {self._gguf_names[name]} and {stored_name}, which are the same"
                )
            self._gguf_names[name] = stored_name
        self._check_rotary()

    def names(self) -> Collection[str]:
        """Names of all tensors; one without a Hugging Face name keeps its own."""
        return self._gguf_names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        shape = self._parts.tensors[self._gguf_names[name]].shape
        return (1, *shape) if name.endswith(ROW_VECTOR) and len(shape) == 1 else shape

    def dtype(self, name: str) -> str:
        """What `tensor` gives."""
        return "float32"

    def blocks(self, name: str) -> StoredBlocks:
        """A tensor as it is stored; plain numbers are blocks, too."""
        return StoredBlocks(self._parts.tensors[self._gguf_names[name]].format.name, partial(self.stored, name))

    def tensor(self, name: str) -> Tensor:
        """One tensor, float32."""
        import torch

        stored = self.stored(name)
        return torch.from_numpy(to_float32(stored.rows, stored.format, stored.shape))

    def stored(self, name: str) -> StoredTensor:
        """One tensor's blocks, untouched but for the order of rows."""
        tensor = self._parts.tensors[self._gguf_names[name]]
        shape = self.shape(name)
        num_rows = 1 if len(shape) == 1 and tensor.format.block_size > 1 else shape[0]
        rows = self._parts.stored(tensor.name).reshape(num_rows, -1)
        num_heads = self._interleaved_heads(tensor.name)
        if num_heads:
            rows = rows.reshape(num_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
        return StoredTensor(tensor.format.name, shape, rows)

    def _interleaved_heads(self, gguf_name: str) -> int:
        """Heads of a query or key projection whose rows are interleaved; 0 for other tensors."""
        match = LAYER_TENSOR.fullmatch(gguf_name) if self._interleaved else None
        kind = match[2] if match else ""
        return {"attn_q": self.spec.num_heads, "attn_k": self.spec.num_kv_heads}.get(kind, 0)

    def _check_rotary(self) -> None:
        """Rows can only be put in order where they are as many as the heads say, and stored one by one."""
        for tensor in self._parts.tensors.values():
            num_rows = self._interleaved_heads(tensor.name) * self.spec.head_dim
            if num_rows and tensor.shape[0] != num_rows:
                raise CheckpointError(
                    f"{self.files[0]}: {tensor.name} has {tensor.shape[0]} rows; "
                    f"the metadata's heads of {self.spec.head_dim} make {num_rows}"
                )
            if num_rows and len(tensor.shape) == 1 and tensor.format.block_size > 1:
                raise CheckpointError(
                    f"{self.files[0]}: {tensor.name} is a vector stored as {tensor.format.name}, in which values "
                    "cannot be put in order; it must be F32, F16 or BF16"
                )

    def _factors(self) -> dict[str, tuple[float, ...]]:
        """Content of the tensors that are rotary settings."""
        factors = {}
        for name in FACTOR_TENSORS:
            tensor = self._parts.tensors.get(name)
            if tensor is None:
                continue
            if len(tensor.shape) != 1 or tensor.shape[0] > MAX_HEAD_DIM // 2:
                raise CheckpointError(
                    f"{self.files[0]}: {name} has the shape {list(tensor.shape)}; "
                    f"it must be a list of at most {MAX_HEAD_DIM // 2} numbers"
                )
            values = to_float32(self._parts.stored(name), tensor.format.name, tensor.shape)
            factors[name] = tuple(values.tolist())
        return factors
