"""One safetensors file, memory-mapped: its header has been read and fits its size."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from limelight.errors import CheckpointError
from limelight.quoting import explanation, quoted

MAX_NAME_CHARACTERS = 512
"""Of a tensor; messages about it quote its name as it is."""


def open_shard(path: Path) -> Any:
    """The open file, as the safetensors library has it; tensors share memory with it.

    Raises:
        CheckpointError: it is unreadable, cut off or corrupt, or gives a tensor an endless name.
    """
    try:
        shard = safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a complete safetensors file ({explanation(error)}); download it again"
        ) from error
    names: list[str] = shard.keys()  # type: ignore[no-untyped-call]
    longest = max(names, key=len, default="")
    if len(longest) > MAX_NAME_CHARACTERS:
        raise CheckpointError(
            f"{path} holds the tensor {quoted(longest)}; at most {MAX_NAME_CHARACTERS} characters make a name"
        )
    return shard
