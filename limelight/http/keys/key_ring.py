"""The keys of a file as principals, read anew when the file has changed."""

import logging
import time
from pathlib import Path

from limelight.errors import ConfigError
from limelight.http.keys.key_file import KeyEntry, read_keys
from limelight.http.keys.principal import Principal

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0

Stamp = tuple[int, int, int]


class KeyRing:
    """Looks at the file when it is asked, once a second at most. A file that cannot be read changes nothing.

    Raises:
        ConfigError: the file cannot be read at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._look()
        self._principals = _principals(path)
        self._looked_at = time.monotonic()

    def principals(self) -> tuple[tuple[bytes, Principal], ...]:
        """SHA-256 of each key, and whose it is."""
        now = time.monotonic()
        if now - self._looked_at >= SECONDS_BETWEEN_LOOKS:
            self._looked_at = now
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_anew()
        return self._principals

    def _look(self) -> Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_ino, status.st_size)

    def _read_anew(self) -> None:
        try:
            self._principals = _principals(self._path)
        except ConfigError as error:
            logger.error("the keys stay as they were: %s", error.message)  # noqa: TRY400 - it says all
        else:
            logger.info("read %d keys from %s", len(self._principals), self._path)


def _principals(path: Path) -> tuple[tuple[bytes, Principal], ...]:
    return tuple((bytes.fromhex(entry.sha256), _principal(entry)) for entry in read_keys(path).keys)


def _principal(entry: KeyEntry) -> Principal:
    return Principal(
        name=entry.name,
        scopes=frozenset(entry.scopes),
        models=None if entry.models is None else frozenset(entry.models),
        max_num_requests=entry.max_num_requests,
        best_priority=entry.best_priority,
        weight=entry.weight,
        tokens_per_minute=entry.tokens_per_minute,
        burst_tokens=entry.burst_tokens,
        private_cache=entry.private_cache,
    )
