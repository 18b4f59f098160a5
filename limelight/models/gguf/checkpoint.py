"""A GGUF file as a `Checkpoint`: Hugging Face names, and query and key rows in the order that those names promise.

GGUF files of the llama architecture interleave each head's query and key rows, so that llama.cpp rotates neighbouring
pairs; transformers (and Limelight) rotate dimension i with i + head_dim / 2. Rows move whole, so quantised blocks stay
as they are.
"""

import re
from collections.abc import Collection
from pathlib import Path

import msgspec
import torch

from limelight.errors import CheckpointError
from limelight.models.gguf.blocks import to_float32
from limelight.models.gguf.file import GgufFile
from limelight.models.gguf.spec import read_gguf_sampling_defaults, read_gguf_spec
from limelight.models.spec import MAX_HEAD_DIM

OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
FREQUENCY_FACTORS = "rope_freqs.weight"


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor as it is stored, for kernels that multiply with quantised blocks directly.

    Attributes:
        format: name of the number format ("Q4_1"; layouts in `blocks.py`).
        shape: of the values, outermost first.
        rows: uint8 [shape[0], bytes per row], shared with the file where rows need no reordering; not to be written.
    """

    format: str
    shape: tuple[int, ...]
    rows: torch.Tensor


class GgufCheckpoint:
    """See `Checkpoint`. Tensors come out in float32 and in memory of their own.

    Attributes:
        metadata: everything else in the file, such as the tokenizer (`tokenizer.ggml.*`) and the chat template.
    """

    def __init__(self, path: Path) -> None:
        """Open a file and check its header.

        Raises:
            CheckpointError: the file is corrupt or lacks something.
            UnsupportedModel: another architecture or number format.
        """
        self._file = GgufFile(path)
        self.metadata = self._file.metadata
        self.files = (path,)
        self.stored_bytes = sum(tensor.num_bytes for tensor in self._file.tensors.values())
        if len(getattr(self._file.tensors.get("token_embd.weight"), "shape", ())) != 2:
            raise CheckpointError(f"{path} has no two-dimensional token_embd.weight; it holds no language model")
        self.spec = read_gguf_spec(self._file, self._frequency_factors())
        self.sampling_defaults = read_gguf_sampling_defaults(self._file)
        self._gguf_names = {_hugging_face_name(name): name for name in self._file.tensors if name != FREQUENCY_FACTORS}
        self._check_rotary()

    def names(self) -> Collection[str]:
        """Names of all tensors; one without a Hugging Face name keeps its own."""
        return self._gguf_names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self._file.tensors[self._gguf_names[name]].shape

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, float32."""
        stored = self.stored(name)
        return to_float32(stored.rows, stored.format, stored.shape)

    def stored(self, name: str) -> StoredTensor:
        """One tensor's blocks, untouched but for the order of rows."""
        tensor = self._file.tensors[self._gguf_names[name]]
        rows = self._file.stored(tensor.name).reshape(tensor.shape[0], -1)
        num_heads = self._rotated_heads(tensor.name)
        if num_heads:
            rows = rows.reshape(num_heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
        return StoredTensor(tensor.format.name, tensor.shape, rows)

    def _rotated_heads(self, gguf_name: str) -> int:
        """Heads of a query or key projection, whose rows are interleaved; 0 for other tensors."""
        match = LAYER_TENSOR.fullmatch(gguf_name)
        kind = match[2] if match else ""
        return {"attn_q": self.spec.num_heads, "attn_k": self.spec.num_kv_heads}.get(kind, 0)

    def _check_rotary(self) -> None:
        """Rows can only be put in order where they are as many as the heads say."""
        for tensor in self._file.tensors.values():
            num_rows = self._rotated_heads(tensor.name) * self.spec.head_dim
            if num_rows and tensor.shape[0] != num_rows:
                raise CheckpointError(
                    f"{self.files[0]}: {tensor.name} has {tensor.shape[0]} rows; "
                    f"the metadata's heads of {self.spec.head_dim} make {num_rows}"
                )

    def _frequency_factors(self) -> tuple[float, ...] | None:
        tensor = self._file.tensors.get(FREQUENCY_FACTORS)
        if tensor is None:
            return None
        if len(tensor.shape) != 1 or tensor.shape[0] > MAX_HEAD_DIM // 2:
            raise CheckpointError(
                f"{self._file.path}: {FREQUENCY_FACTORS} has the shape {list(tensor.shape)}; "
                f"it must be a list of at most {MAX_HEAD_DIM // 2} numbers"
            )
        values = to_float32(self._file.stored(FREQUENCY_FACTORS), tensor.format.name, tensor.shape)
        return tuple(values.tolist())


def _hugging_face_name(name: str) -> str:
    match = LAYER_TENSOR.fullmatch(name)
    if match and match[2] in LAYER:
        return f"model.layers.{match[1]}.{LAYER[match[2]]}.{match[3]}"
    return OUTER.get(name, name)
