"""Typed reading of a model's own settings (`config.json`, GGUF metadata): nothing in there is trusted.

Every refusal is a `CheckpointError` that names the file, the field, the value and what would be right.
"""

import json
import math
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limelight.errors import CheckpointError
from limelight.quoting import quoted, shorten

MAX_JSON_BYTES = 64 * 1024 * 1024
"""No settings file comes near this; a larger one is not read into memory."""


class Fields:
    """Named values of one file, read with their types and bounds."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from `low` to `high`.

        Raises:
            CheckpointError: the field is absent (or null) and has no default, or is something else.
        """
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.source}: {name} is missing; it must be an integer from {low} to {high}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(name, value, f"it must be an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from `low` to `high`; raises like `integer`."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.source}: {name} is missing; it must be a number from {low} to {high}")
            return default
        # An integer of any size may stand here, and comparing it needs no conversion to float.
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or (isinstance(value, float) and not math.isfinite(value))
            or not low <= value <= high
        ):
            raise self.refusal(name, value, f"it must be a number from {low} to {high}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false; raises like `integer`."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(name, value, "it must be true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None if absent; raises like `integer`."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refusal(name, value, "it must be a string")
        return value

    def numbers(self, name: str, length: int, low: float, high: float) -> tuple[float, ...]:
        """A list of exactly `length` finite numbers, each from `low` to `high`; raises like `integer`."""
        values = self.values.get(name)
        if not isinstance(values, list) or len(values) != length:
            described = (
                f"{name} has {len(values)} entries" if isinstance(values, list) else f"{name} is {quoted(values)}"
            )
            raise CheckpointError(f"{self.source}: {described}; it must be a list of {length} numbers")
        entries = Fields({f"{name}[{index}]": value for index, value in enumerate(values)}, self.source)
        return tuple(entries.number(entry, low, high) for entry in entries.values)

    def token_ids(self, name: str, vocab_size: int) -> frozenset[int]:
        """One token id or a list of them, each below `vocab_size`; empty if absent. Raises like `integer`."""
        value = self.values.get(name)
        if value is None:
            return frozenset()
        ids = value if isinstance(value, list) else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise self.refusal(name, value, f"it must hold token ids from 0 to {vocab_size - 1}")
        return frozenset(ids)

    def group(self, name: str) -> "Fields | None":
        """A nested object, or None if absent or empty; raises like `integer`."""
        value = self.values.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.refusal(name, value, "it must be an object")
        return Fields(value, f"{self.source}: {shorten(name)}")

    def refusal(self, name: str, value: object, fix: str) -> CheckpointError:
        """The error for a field that holds something impossible."""
        return CheckpointError(f"{self.source}: {shorten(name)} is {quoted(value)}; {fix}")


def read_config(folder: Path) -> Fields:
    """`config.json` of a model folder.

    Raises:
        CheckpointError: it is missing, or as `read_json_object`.
    """
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise CheckpointError(
                f"{folder} is a LoRA adapter, which runs with its base model; load that one, and this as an adapter of "
                f"it (limelight serve BASE --lora NAME={folder})"
            )
        raise CheckpointError(f"{folder} has no config.json; a model folder needs one, beside its *.safetensors files")
    return Fields(read_json_object(path), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: unreadable, too large, not JSON, or not an object.
    """
    try:
        status = path.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, a device read without end
            raise CheckpointError(f"{path} is no regular file; a settings file must be one")
        if size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path} has {size} bytes; a settings file has at most {MAX_JSON_BYTES}")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}; it must be an object")
    return value
