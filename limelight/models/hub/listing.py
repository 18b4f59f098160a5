"""What a repository holds at one commit: asked from the hub, or read from the cache where the hub is out of reach."""

import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import msgspec

from limelight import __version__
from limelight.models.safetensors.checkpoint import MAX_FILE_NAME_BYTES

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_FILES = 100_000
MAIN = "main"
"""The branch that is meant where none is named."""
AGENT: Any = {"library_name": "limelight", "library_version": __version__}
"""Who asks, for the hub's statistics."""


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a repository.

    Attributes:
        num_bytes: its size; 0 where unknown.
        sha256: of the content, where the hub states it (files in large-file storage), else None.
    """

    num_bytes: int
    sha256: str | None = None


class Listing(msgspec.Struct, frozen=True):
    """All files of a repository at a commit.

    Attributes:
        files: by path, each of which leads to below a folder on any system.
        folder: where the cache has, or will have, those files of this commit that were fetched.
        renamed_to: the repository's present id, where the one that was asked for is an old one.
        from_cache: it was read from the cache, and the hub is not to be asked for more.
    """

    repository: str
    commit: str
    files: Mapping[str, RemoteFile]
    folder: Path
    renamed_to: str | None = None
    from_cache: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Path -> bytes."""
        return {path: file.num_bytes for path, file in self.files.items()}

    @property
    def blobs(self) -> Path:
        """The folder of contents, by their checksums; the snapshots link there."""
        return self.folder.parent.parent / "blobs"

    def missing(self, paths: tuple[str, ...]) -> list[str]:
        """Those of `paths` that are not on this machine."""
        return [path for path in paths if not (self.folder / path).is_file()]


def list_remote(repository: str, revision: str | None, endpoint: str | None, cache: Path) -> Listing:
    """Ask the hub: one request.

    Raises:
        HTTPError, OSError, HFValidationError: huggingface_hub's errors, as they come.
    """
    from huggingface_hub import HfApi, constants

    found = HfApi(endpoint=endpoint, **AGENT).model_info(
        repository, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    if not found.sha or not COMMIT.fullmatch(found.sha) or len(found.siblings or ()) > MAX_FILES:
        raise OSError(f"the answer names no commit, or more than {MAX_FILES:,} files")
    files: dict[str, RemoteFile] = {}
    for sibling in found.siblings or ():
        if not _stays_inside(sibling.rfilename):
            continue
        stated = sibling.lfs.sha256 if sibling.lfs is not None else ""
        files[sibling.rfilename] = RemoteFile(
            max(sibling.size or 0, 0), stated if SHA256.fullmatch(stated or "") else None
        )
    renamed = found.id if found.id and found.id.lower() != repository.lower() else None
    return Listing(repository, found.sha, files, _storage(cache, repository) / "snapshots" / found.sha, renamed)


def remember(listing: Listing, revision: str | None) -> None:
    """Let the cache know which commit a branch or tag stood for, as huggingface_hub does: for when the hub is away."""
    refs = (listing.blobs.parent / "refs").resolve()
    path = (refs / (revision or MAIN)).resolve()
    if path.is_relative_to(refs) and not COMMIT.fullmatch(revision or MAIN):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(listing.commit)


def _stays_inside(path: str) -> bool:
    """Whether `path`, below a folder, is in that folder on any system; nothing else in a listing is ever opened."""
    parts = path.split("/")
    endless = any(len(part.encode(errors="replace")) > MAX_FILE_NAME_BYTES for part in parts)
    return not (
        endless or {"", ".", ".."} & set(parts) or "\\" in path or "\x00" in path or PureWindowsPath(path).drive
    )


def list_cached(repository: str, revision: str | None, cache: Path) -> Listing | None:
    """What the cache knows of a revision; None if nothing of it was ever fetched.

    Names all files of the repository where a listing was kept beside them, else those that are there.
    """
    storage = _storage(cache, repository)
    commit = _cached_commit(storage, revision or MAIN)
    if commit is None:
        return None
    folder = storage / "snapshots" / commit
    if not folder.is_dir():
        return None
    files = _kept_listing(repository, commit, cache)
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = RemoteFile(path.stat().st_size)
    return Listing(repository, commit, files, folder, from_cache=True)


def _storage(cache: Path, repository: str) -> Path:
    return cache / f"models--{repository.replace('/', '--')}"


def _cached_commit(storage: Path, revision: str) -> str | None:
    if COMMIT.fullmatch(revision):
        return revision
    refs = (storage / "refs").resolve()
    path = (refs / revision).resolve()
    if not path.is_relative_to(refs) or not path.is_file():
        return None
    commit = path.read_text(errors="replace").strip()
    return commit if COMMIT.fullmatch(commit) else None


def _kept_listing(repository: str, commit: str, cache: Path) -> dict[str, RemoteFile]:
    import huggingface_hub

    # Versions before 2 keep none.
    read = getattr(huggingface_hub, "get_cached_repo_tree", None)
    if read is None:
        return {}
    try:
        entries = read(repository, revision=commit, cache_dir=cache)
    except huggingface_hub.errors.CachedRepoTreeNotFoundError:
        return {}
    return {entry.path: RemoteFile(entry.size or 0) for entry in entries}
