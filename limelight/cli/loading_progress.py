"""How loading shows on standard error: bars on a terminal, a few plain lines elsewhere."""

import sys
import time
from collections.abc import Callable

from tqdm import tqdm

from limelight.cli.terminal import say
from limelight.progress import BytesDone, Note

SHARE_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
BYTES_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {rate_fmt}, {remaining} left"
LINE_SECONDS = 10.0
"""Away from a terminal a download tells of itself this often at the most, and no more often than every tenth of it."""


class LoadingProgress:
    """An engine's `report`: a bar per stage on a terminal, one plain line per stage elsewhere.

    A stage that counts bytes shows them, with speed and remaining time.

    Args:
        clock: seconds, for speeds in plain lines.
        tell: where plain lines go.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, tell: Callable[[str], None] = say) -> None:
        self._clock = clock
        self._tell = tell
        self._stage: str | None = None
        self._bar: tqdm | None = None
        self._lines: _ByteLines | None = None

    def __call__(self, stage: str, fraction: float | None) -> None:
        """Stage `stage` is `fraction` (0 to 1) done; None where that is not known, or for a `Note`. From one thread at
        a time.
        """
        if isinstance(stage, Note):
            self.close()
            self._stage = None
            self._tell(stage)
            return
        if stage != self._stage:
            self.close()
            self._stage = stage
            if sys.stderr.isatty():
                self._bar = _bar(stage, fraction)
            elif isinstance(fraction, BytesDone):
                self._lines = _ByteLines(stage, fraction, self._clock, self._tell)
            else:
                self._tell(stage)
        if self._bar is not None and fraction is not None:
            done = fraction.done_bytes if isinstance(fraction, BytesDone) else fraction
            self._bar.update(done - self._bar.n)
        elif self._lines is not None and isinstance(fraction, BytesDone):
            self._lines.show(fraction)

    def close(self) -> None:
        """Ends the bar in hand."""
        if self._bar is not None:
            self._bar.close()
        self._bar = self._lines = None


class _ByteLines:
    """Sparse lines about one download."""

    def __init__(self, stage: str, first: BytesDone, clock: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._stage = stage
        self._clock = clock
        self._tell = tell
        self._started_at = self._said_at = clock()
        self._said = float(first)
        rest = f", {_size(first.found_bytes)} of them here already" if first.found_bytes else ""
        tell(f"{stage}: {_size(first.total_bytes)}{rest}")

    def show(self, done: BytesDone) -> None:
        """Says how far it is, if that is worth a line by now."""
        now = self._clock()
        if done < 1.0 and done - self._said >= 0.1 and now - self._said_at >= LINE_SECONDS:
            self._said_at, self._said = now, float(done)
            speed = max((done.done_bytes - done.found_bytes) / (now - self._started_at), 1.0)
            left = tqdm.format_interval((done.total_bytes - done.done_bytes) / speed)
            self._tell(f"{self._stage}: {done:.0%} of {_size(done.total_bytes)}, {_size(speed)}/s, {left} left")


def _bar(stage: str, fraction: float | None) -> tqdm:
    if fraction is None:
        return tqdm(desc=stage, bar_format="{desc} ...")
    if isinstance(fraction, BytesDone):
        return tqdm(
            desc=stage,
            total=fraction.total_bytes,
            initial=fraction.found_bytes,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            dynamic_ncols=True,
            bar_format=BYTES_BAR,
        )
    return tqdm(desc=stage, total=1.0, bar_format=SHARE_BAR)


def _size(num_bytes: float) -> str:
    return f"{tqdm.format_sizeof(num_bytes, 'B', 1024)}"
