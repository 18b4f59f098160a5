"""What a GGUF file says about a model of one architecture: its keys without the architecture's name in front."""

from typing import Any

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.spec import MAX_LAYERS


class Metadata:
    """Typed values of the keys `architecture.name`. Refusals are those of `Fields`, with the whole key.

    Attributes:
        fields: all keys of the file.
    """

    def __init__(self, fields: Fields, architecture: str) -> None:
        self.fields = fields
        self._prefix = f"{architecture}."

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self.fields

    @property
    def source(self) -> str:
        """The file, for messages."""
        return self.fields.source

    def key(self, name: str) -> str:
        """The whole key."""
        return self._prefix + name

    def value(self, name: str) -> Any:
        """What the file holds there, unchecked; None if absent."""
        return self.fields.values.get(self._prefix + name)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from `low` to `high`; a list that repeats one value for each layer counts as that value.

        Raises:
            CheckpointError: absent without a default, or something else.
            UnsupportedModel: the list holds different values.
        """
        value = self.value(name)
        if not isinstance(value, list):
            return self.fields.integer(self._prefix + name, low, high, default)
        if not 1 <= len(value) <= MAX_LAYERS:
            raise self.refusal(name, value, f"a list must have one value for each of 1 to {MAX_LAYERS} layers")
        if any(item != value[0] for item in value):
            raise UnsupportedModel(
                f"{self.source}: {self.key(name)} differs between layers; Limelight runs uniform layers here"
            )
        return Fields({self._prefix + name: value[0]}, self.source).integer(self._prefix + name, low, high)

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from `low` to `high`; raises like `Fields.number`."""
        return self.fields.number(self._prefix + name, low, high, default)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false; raises like `Fields.flag`."""
        return self.fields.flag(self._prefix + name, default=default)

    def text(self, name: str) -> str | None:
        """A string, or None if absent; raises like `Fields.text`."""
        return self.fields.text(self._prefix + name)

    def refusal(self, name: str, value: object, fix: str) -> CheckpointError:
        """The error for a key that holds something impossible."""
        return self.fields.refusal(self.key(name), value, fix)
