"""One large file from the hub into the cache, in as many pieces as it takes.

huggingface_hub throws away what it has of a file when its process ends; of a file of many gigabytes that is too dear.
So the large ones come through here: what has arrived stays as `SHA256.incomplete`, the next attempt asks for the rest
(an HTTP range), and the checksum decides whether the pieces fit together. Small files are left to huggingface_hub.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from limelight.errors import ModelError

LARGE_BYTES = 2**20
MAX_HTTP_BYTES = 50 * 10**9
"""The hub gives larger files through its other protocol (Xet) only."""
MAX_FAILURES = 5
"""Failures in a row, without a byte between them that had not arrived before."""
RETRY_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 10.0
"""A hub that asks for more patience is left alone, and the user told."""
LOCK_SECONDS = 0.5
"""A wait for another process looks up this often, whether it is to end."""
TRANSIENT = (408, 429, 500, 502, 503, 504)


class TransferStopped(Exception):
    """Another file of the same download failed."""


class LargeFile(msgspec.Struct, frozen=True):
    """What is to be fetched.

    Attributes:
        path: in the repository, for messages.
        blob: where the content belongs, in the cache's folder of blobs.
    """

    path: str
    url: str
    num_bytes: int
    sha256: str
    blob: Path

    @property
    def partial(self) -> Path:
        """Where the content grows."""
        return self.blob.with_name(f"{self.blob.name}.incomplete")

    @property
    def arrived_bytes(self) -> int:
        """How much of it is on this machine."""
        if self.blob.exists():
            return self.num_bytes
        return min(self.partial.stat().st_size, self.num_bytes) if self.partial.exists() else 0


def fetch_large(
    file: LargeFile,
    headers: Mapping[str, str],
    lock: Path,
    on_bytes: Callable[[int], None],
    stop: threading.Event,
    retry_seconds: float = RETRY_SECONDS,
) -> None:
    """Complete a file. Blocks; other processes that want the same file wait for it, and then find it.

    Args:
        headers: for the hub, with the token.
        lock: path of the lock file.
        on_bytes: told how many more bytes have arrived; negative where some turned out to be useless.
        stop: ends it early.
        retry_seconds: waited after a failure.

    Raises:
        ModelError: what arrives does not have the stated checksum.
        TransferStopped: it was ended early.
        HTTPError, OSError: as they come, after some retries.
    """
    file.blob.parent.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    found = file.arrived_bytes
    with contextlib.ExitStack() as held:
        _acquire(held, lock, stop)
        on_bytes(file.arrived_bytes - found)  # what another process did meanwhile
        while not file.blob.exists():
            resumed = file.arrived_bytes > 0
            _fetch_rest(file, headers, on_bytes, stop, retry_seconds)
            with file.partial.open("rb") as content:
                arrived = hashlib.file_digest(content, "sha256").hexdigest()
            if arrived == file.sha256:
                file.partial.replace(file.blob)
                return
            file.partial.unlink()
            on_bytes(-file.num_bytes)
            if not resumed:
                raise ModelError(
                    f"{file.path} arrives with the checksum {arrived[:12]}... where the hub states "
                    f"{file.sha256[:12]}...; try again, or from another network"
                )


def _acquire(held: contextlib.ExitStack, lock: Path, stop: threading.Event) -> None:
    """Enter `lock` into `held`, however long another process has it.

    Raises:
        TransferStopped: it was ended early.
    """
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            held.enter_context(WeakFileLock(lock, timeout=LOCK_SECONDS))
            return
    raise TransferStopped


def _fetch_rest(
    file: LargeFile,
    headers: Mapping[str, str],
    on_bytes: Callable[[int], None],
    stop: threading.Event,
    retry_seconds: float,
) -> None:
    """Receive until `file.partial` has the stated size."""
    from huggingface_hub import errors

    failures, furthest = 0, file.arrived_bytes
    while (before := file.arrived_bytes) < file.num_bytes or not file.partial.exists():
        failure: Exception = OSError(f"{file.path} ends after {before:,} of {file.num_bytes:,} bytes")
        try:
            _receive(file, before, headers, on_bytes, stop)
        except errors.HTTPError as error:  # type: ignore[attr-defined]
            status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
            if (status is not None and status not in TRANSIENT) or _asked_to_wait(error) > LONGEST_WAIT_SECONDS:
                raise
            failure = error
        # Not more than before: a hub that refuses every range would be asked for the same bytes for ever.
        failures = 0 if file.arrived_bytes > furthest else failures + 1
        furthest = max(furthest, file.arrived_bytes)
        if failures > MAX_FAILURES:
            raise failure
        if file.arrived_bytes < file.num_bytes and stop.wait(max(retry_seconds, _asked_to_wait(failure))):
            raise TransferStopped


def _receive(
    file: LargeFile, start: int, headers: Mapping[str, str], on_bytes: Callable[[int], None], stop: threading.Event
) -> None:
    """One request for everything from byte `start`, appended as it comes."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    ranged = {**headers, "Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", file.url, headers=ranged, timeout=timeout, follow_redirects=True) as response:
        if response.status_code == 416:  # there is no such range: what we have is of something else
            file.partial.unlink(missing_ok=True)
            on_bytes(-start)
            return
        if response.is_error:
            response.read()  # the reason
        hf_raise_for_status(response)
        if start and not _continues(response, start):
            on_bytes(-start)
            start = 0
        with file.partial.open("r+b" if start else "wb") as content:
            content.seek(start)
            for chunk in response.iter_bytes():  # as they come, so that a cut loses none
                if stop.is_set():
                    raise TransferStopped
                start += len(chunk)
                if start > file.num_bytes:
                    raise OSError(f"{file.path} is longer than the {file.num_bytes:,} bytes that the hub states")
                content.write(chunk)
                on_bytes(len(chunk))


def _continues(response: Any, start: int) -> bool:
    """Whether the answer begins where we asked; some servers ignore ranges and send everything."""
    stated: str = response.headers.get("content-range", "")
    return response.status_code == 206 and stated.startswith(f"bytes {start}-")


def _asked_to_wait(error: Any) -> float:
    """Seconds that a refusal asks for."""
    response = getattr(error, "response", None)
    stated = response.headers.get("retry-after", "") if response is not None else ""
    return float(stated) if stated.isascii() and stated.isdigit() else 0.0
