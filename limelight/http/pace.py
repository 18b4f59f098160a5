"""How often all streams of a server together write: many fast streams get several tokens a frame, few each at once."""

from collections.abc import Iterator
from contextlib import contextmanager

MAX_FRAMES_PER_SECOND = 2000
"""Over all streams. A frame costs the event loop 20 to 60 us, so this is a tenth of it at most; 64 streams still have
news 31 times a second, more often than anyone reads."""

FREE_STREAMS = 16
"""So few streams write whenever they have something."""


class Pace:
    """Counts the streams that have begun to write."""

    def __init__(self) -> None:
        self._num_open = 0

    @contextmanager
    def stream(self) -> Iterator[None]:
        """One more stream, inside the block."""
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1

    @property
    def seconds_between_frames(self) -> float:
        """Between two frames of one stream, at least."""
        return self._num_open / MAX_FRAMES_PER_SECOND if self._num_open > FREE_STREAMS else 0.0
