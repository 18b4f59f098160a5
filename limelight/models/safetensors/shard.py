"""One safetensors file, memory-mapped: its header has been read and fits its size."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from limelight.errors import CheckpointError


def open_shard(path: Path) -> Any:
    """The open file, as the safetensors library has it; tensors share memory with it.

    Raises:
        CheckpointError: it is unreadable, cut off or corrupt.
    """
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a complete safetensors file ({error}); download it again") from error
