"""The folder of replay bundles: one file each, for its owner's eyes, the oldest removed when there are too many."""

import contextlib
import os
import re
import uuid
from pathlib import Path

from limelight.errors import ConfigError, InvalidRequest
from limelight.quoting import quoted

RECORD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
"""What names a bundle: no path can be made of it."""
SUFFIX = ".replay.json"
UNFINISHED = ".unfinished"


class RecordFolder:
    """Bundles by id. Blocking; one thread at a time may write, any may read.

    Args:
        max_records, max_bytes: of all bundles; those written first go when there are more.
    """

    def __init__(self, path: Path, max_records: int, max_bytes: int) -> None:
        self.path = path
        self._max_records = max_records
        self._max_bytes = max_bytes

    def prepare(self) -> None:
        """Make the folder if there is none, and remove what an earlier process could not finish.

        Raises:
            ConfigError: bundles cannot be written here.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for unfinished in self.path.glob(f".*{UNFINISHED}"):
                unfinished.unlink(missing_ok=True)
            probe = self._unfinished()
            os.close(_create(probe))
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"record_dir is {str(self.path)!r}, where nothing can be written ({error.strerror}); choose another"
            ) from error

    def write(self, record_id: str, content: bytes) -> None:
        """Write a bundle: whole or not at all.

        Raises:
            OSError: the disk is full, say.
            InvalidRequest: it is larger than all may be together.
        """
        if len(content) > self._max_bytes:
            raise InvalidRequest(
                f"the bundle has {len(content):,} bytes, and max_record_bytes is {self._max_bytes:,}; raise it"
            )
        self._make_room(len(content))
        unfinished = self._unfinished()
        try:
            with os.fdopen(_create(unfinished), "wb") as file:
                file.write(content)
            unfinished.replace(self._file(record_id))
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise

    def read(self, record_id: str) -> bytes | None:
        """A bundle's content; None: there is none of this id (any more).

        Raises:
            OSError: it cannot be read.
        """
        if RECORD_ID.fullmatch(record_id) is None:
            return None
        try:
            return self._file(record_id).read_bytes()
        except FileNotFoundError:
            return None

    def _make_room(self, num_bytes: int) -> None:
        """Remove the oldest bundles, so that one more of this size is not too much."""
        found = []
        for path in self.path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # removed by hand meanwhile
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        found.sort()
        total = sum(size for _, size, _ in found)
        while found and (len(found) >= self._max_records or total + num_bytes > self._max_bytes):
            _, size, path = found.pop(0)
            path.unlink(missing_ok=True)
            total -= size

    def _file(self, record_id: str) -> Path:
        return self.path / f"{record_id}{SUFFIX}"

    def _unfinished(self) -> Path:
        return self.path / f".{uuid.uuid4().hex}{UNFINISHED}"


def check_record_id(record_id: str) -> None:
    """Raises InvalidRequest if no file can have this name."""
    if not isinstance(record_id, str) or RECORD_ID.fullmatch(record_id) is None:
        raise InvalidRequest(
            f"record_id is {quoted(record_id)}; use at most 64 letters, digits, - and _, the first a letter or digit",
            param="record_id",
        )


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
