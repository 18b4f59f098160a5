"""What huggingface_hub's cache holds: every model of every repository and revision in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from limelight.models.hub.gguf_choice import gguf_models
from limelight.models.hub.needed_files import ADAPTER


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model, or an adapter, whose files (or some of them) are here.

    Attributes:
        name: what to call it on the command line.
        revision: its branches and tags, or the commit where none is known.
        path: the folder or `.gguf` file.
        num_bytes: of its files.
        is_adapter: it is a LoRA adapter.
    """

    name: str
    revision: str
    path: Path
    num_bytes: int
    is_adapter: bool = False


def cached_models(cache: Path | None = None) -> list[CachedModel]:
    """Everything in the cache (None: huggingface_hub's), by name."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        scanned = scan_cache_dir(cache or constants.HF_HUB_CACHE)
    except CacheNotFound:
        return []
    found = [
        model
        for repository in scanned.repos
        if repository.repo_type == "model"
        for revision in repository.revisions
        for model in _models_of(repository.repo_id, revision)
    ]
    return sorted(found, key=lambda model: (model.name.lower(), model.revision))


def _models_of(repository: str, revision: Any) -> Iterator[CachedModel]:
    folder = Path(revision.snapshot_path)
    sizes: Mapping[str, int] = {
        Path(file.file_path).relative_to(folder).as_posix(): file.size_on_disk for file in revision.files
    }
    named = ", ".join(sorted(revision.refs)) or revision.commit_hash[:12]
    if ADAPTER[0] in sizes:
        size = sum(sizes.get(path, 0) for path in ADAPTER)
        yield CachedModel(name=repository, revision=named, path=folder, num_bytes=size, is_adapter=True)
    for model in gguf_models(sizes):
        name = f"{repository}:{model.label or model.files[0]}"
        yield CachedModel(name=name, revision=named, path=folder / model.files[0], num_bytes=model.num_bytes)
    if "config.json" in sizes and (any(path.endswith(".safetensors") for path in sizes) or not gguf_models(sizes)):
        size = sum(size for path, size in sizes.items() if not path.lower().endswith(".gguf"))
        yield CachedModel(name=repository, revision=named, path=folder, num_bytes=size)
