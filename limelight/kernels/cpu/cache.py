"""The folder of compiled kernels: libraries that this user's processes have compiled, named by what went in.

A library is loaded into the process, so nobody else may be able to write one: a folder or file that belongs to another
user, or that others may write to, is not used. A file's name ends with the hash of its contents: one that is damaged is
never loaded. Files appear by renaming, so any number of processes may compile at once.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

KEPT_SECONDS = 30 * 24 * 3600.0
"""How long a library is kept after its last use."""


class CacheUnusable(Exception):
    """The folder cannot be used; the message says why."""


def default_folder() -> Path:
    """`limelight/kernels` in the user's cache, as the XDG base directory specification has it."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "limelight" / "kernels"


class Cache:
    """Compiled kernels in one folder.

    Attributes:
        folder: exists, belongs to this user, and nobody else can write to it.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder where it is missing.

        Raises:
            CacheUnusable: it cannot be made, written to or trusted.
        """
        self.folder = folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
        except OSError as error:
            raise CacheUnusable(f"{folder} cannot be made: {error}") from error
        if not stat.S_ISDIR(status.st_mode) or not _is_ours(status):
            raise CacheUnusable(f"{folder} belongs to another user, or others can write to it; remove it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CacheUnusable(f"{folder} cannot be written to")

    def find(self, name: str) -> Iterator[Path]:
        """Undamaged libraries stored under names that begin with `name`, the one used last first."""
        found = sorted(self.folder.glob(f"{name}-*.so"), key=_last_use, reverse=True)
        for path in found:
            if self._is_sound(path):
                with contextlib.suppress(OSError):
                    path.touch()
                yield path

    def store(self, made: Path, name: str) -> Path:
        """Move a library that was made in the folder to its place; returns that. Libraries long unused go.

        Raises:
            OSError: the disk is full, or the like.
        """
        made.chmod(0o600)
        target = self.folder / f"{name}-{_content_hash(made)}.so"
        made.replace(target)
        for path in self.folder.iterdir():
            if _last_use(path) < time.time() - KEPT_SECONDS:
                self.remove(path)
        return target

    def remove(self, path: Path) -> None:
        """Remove a library, or what a compilation that was broken off has left."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()

    def _is_sound(self, path: Path) -> bool:
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or not _is_ours(status):
                return False
            if path.stem.rpartition("-")[2] == _content_hash(path):
                return True
        except OSError:
            return False
        self.remove(path)
        return False


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _content_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _last_use(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
