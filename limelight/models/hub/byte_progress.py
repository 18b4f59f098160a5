"""Bytes of one download, from several threads, as one report at a time."""

import threading

from limelight.progress import BytesDone, Report

REPORTED_BYTES = 2**18
"""Progress is reported about this often."""


class ByteProgress:
    """Counts what arrives. Thread-safe.

    Args:
        report: told of it.
        what: the stage.
        found_bytes: what was there before; counts as done.
        total_bytes: of the whole download.
    """

    def __init__(self, report: Report, what: str, found_bytes: int, total_bytes: int) -> None:
        self._report = report
        self._what = what
        self._found_bytes = found_bytes
        self._total_bytes = total_bytes
        self._done_bytes = found_bytes
        self._next_bytes = 0
        self._lock = threading.Lock()
        self.add(0)

    def add(self, num_bytes: int) -> None:
        """So many more have arrived."""
        with self._lock:
            self._done_bytes += num_bytes
            if self._total_bytes and (self._done_bytes >= self._next_bytes or num_bytes < 0):
                self._next_bytes = min(self._done_bytes + REPORTED_BYTES, self._total_bytes)
                self._report(self._what, BytesDone(self._done_bytes, self._total_bytes, self._found_bytes))

    def tell(self) -> None:
        """Report once more, so that whoever is told can end a download that brings nothing."""
        with self._lock:
            self._report(self._what, BytesDone(self._done_bytes, self._total_bytes, self._found_bytes))

    def finish(self) -> None:
        """All of it is there."""
        self.add(self._total_bytes - self._done_bytes)
