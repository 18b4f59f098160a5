"""From the name of a model to files on this machine: the embedded default, a local path, or the Hugging Face hub.

Touches the network only for hub ids, runs no code of a repository, and opens nothing that is pickled.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from limelight.errors import ConfigError
from limelight.models.hub.names import (
    DEFAULT_FILE,
    DEFAULT_PACKAGE,
    DEFAULT_REPOSITORY,
    DEFAULT_SAMPLING,
    HubName,
    embedded_model,
    model_name,
    parse_adapter_name,
    parse_name,
)
from limelight.progress import Report
from limelight.quoting import quoted

if TYPE_CHECKING:
    from limelight.models.hub.download import HubFiles

__all__ = [
    "DEFAULT_FILE", "DEFAULT_PACKAGE", "DEFAULT_REPOSITORY", "DEFAULT_SAMPLING",
    "embedded_model", "model_name", "resolve", "resolve_adapter",
]  # fmt: skip


def resolve(
    model: str | None, revision: str | None, report: Report, *, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """The folder or `.gguf` file of a model, downloaded if it has to be. Blocks.

    Args:
        model: None for the default model, a local folder or file (which wins over a hub id), `organisation/name`, or
            `organisation/name:Q4_K_M` or `organisation/name:file.gguf` for one of a repository's GGUF files.
        revision: branch, tag or commit, for hub ids only.
        report: called during a download, and with a sentence where a choice was made.
        endpoint: the hub's address; default: huggingface_hub's.
        cache: where downloads are kept; default: huggingface_hub's.

    Raises:
        CheckpointError: a path that does not exist, a name that cannot be one of a model, or a repository without
            what it names.
        ConfigError: a revision of something local.
        ModelError: the hub does not have it, does not give it, or cannot be reached; the disk is too small.
    """
    if model is None:
        embedded = embedded_model()
        if embedded is not None and revision is None:
            return embedded
        name: Path | HubName = HubName(DEFAULT_REPOSITORY)
    else:
        name = parse_name(model)
    if isinstance(name, HubName):
        return _hub_files(name, revision, report, endpoint, cache).model()
    _refuse_revision(name, revision)
    return name


def resolve_adapter(
    adapter: str, revision: str | None, report: Report, *, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """The folder of a LoRA adapter (`adapter_config.json`, `adapter_model.safetensors`), downloaded if need be. Blocks.

    Args:
        adapter: a local folder, `organisation/name`, or `hf://organisation/name`, which is never taken for a folder.
        revision, report, endpoint, cache: as for `resolve`.

    Raises:
        CheckpointError: there is no such folder, or the repository holds no adapter that can be loaded.
        ConfigError: a revision of something local.
        ModelError: as for `resolve`.
    """
    name = parse_adapter_name(adapter)
    if isinstance(name, HubName):
        return _hub_files(name, revision, report, endpoint, cache).adapter()
    _refuse_revision(name, revision)
    return name


def _hub_files(
    name: HubName, revision: str | None, report: Report, endpoint: str | None, cache: Path | None
) -> "HubFiles":
    from limelight.models.hub.download import HubFiles  # imports much, which a look at a name must not wait for

    return HubFiles(name, revision, report, endpoint, cache)


def _refuse_revision(path: Path, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(f"revision is {quoted(revision)}, but {path} is a local path; leave revision out")
