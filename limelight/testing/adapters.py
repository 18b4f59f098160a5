"""LoRA adapters of scripted models: folders of which only the rank is read."""

from pathlib import Path

import msgspec

from limelight.engine import Report
from limelight.errors import CheckpointError
from limelight.models.loaded_model import AdapterWeights


class ScriptedAdapter(msgspec.Struct, frozen=True):
    """What is read of a folder's `adapter_config.json`."""

    rank: int = msgspec.field(name="r")
    num_bytes: int = 0


class ScriptedAdapters:
    """Loads any folder that holds an `adapter_config.json`, for its rank `r`.

    Attributes:
        loaded: adapters by id.
    """

    def __init__(self) -> None:
        self.loaded: dict[int, AdapterWeights] = {}

    def read(self, path: str, report: Report) -> ScriptedAdapter:
        """The settings in the folder `path`.

        Raises:
            CheckpointError: there are none.
        """
        report("adapter", 1.0)
        try:
            return msgspec.json.decode((Path(path) / "adapter_config.json").read_bytes(), type=ScriptedAdapter)
        except (OSError, msgspec.MsgspecError) as error:
            raise CheckpointError(f"{path} holds no adapter_config.json with a rank") from error

    def put(self, adapter: int, weights: AdapterWeights) -> None:
        """Take it in."""
        self.loaded[adapter] = weights

    def drop(self, adapter: int) -> None:
        """Let it go."""
        del self.loaded[adapter]
