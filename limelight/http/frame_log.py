"""The frames of one stream, kept so that readers can come and go: numbered from 0, the oldest dropped first.

One writer, any number of readers. A reader is a number, so a slow one costs nothing and holds up nobody; one that falls
behind the oldest frame that is still there learns that.
"""

import asyncio
from collections.abc import Callable, Iterable

from limelight.errors import StreamGone

MAX_READ_BYTES = 256 * 1024
"""What a reader gets at once, so that it waits for its socket now and then."""
FRAME_OVERHEAD_BYTES = 48
"""What keeping a frame costs beside its content."""


def _ignore(num_bytes: int) -> None:
    """The budget of a log that has none."""


class FrameLog:
    """Appends, and reads by number.

    Args:
        max_bytes: above it the oldest frames go, an eighth at once; what was appended last always stays, so that no
            reader loses it that had read what came before.
        grown: told of every change of `num_bytes`, by how much.

    Attributes:
        first: number of the oldest frame that is still there.
        closed: nothing will be appended.
    """

    def __init__(self, max_bytes: int, grown: Callable[[int], None] = _ignore) -> None:
        self._max_bytes = max_bytes
        self._grown = grown
        self._frames: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._num_newest = 0
        self.first = 0
        self.num_bytes = 0
        self.closed = False

    @property
    def end(self) -> int:
        """Number of the next frame, which is how many there have been."""
        return self.first + len(self._frames)

    def append(self, frames: Iterable[bytes]) -> None:
        """Add whole frames; nobody is waited for."""
        assert not self.closed, "nothing follows the end"
        new = list(frames)
        size = sum(map(_size, new))
        self._frames += new
        self._num_newest = len(new) or self._num_newest
        self.num_bytes += size
        if self.num_bytes > self._max_bytes:
            self.drop_oldest(self.num_bytes - self._max_bytes * 7 // 8)
        self._grown(size)
        self._wake()

    def close(self) -> None:
        """Nothing follows. Idempotent."""
        self.closed = True
        self._wake()

    def drop_oldest(self, num_bytes: int) -> None:
        """Drop frames until `num_bytes` are free, or until those are left that were appended last."""
        number = freed = 0
        while freed < num_bytes and number < len(self._frames) - self._num_newest:
            freed += _size(self._frames[number])
            number += 1
        self._drop(number, freed)

    def drop_all(self) -> None:
        """Drop every frame; readers that have not read all of them have lost them."""
        self._num_newest = 0
        self._drop(len(self._frames), self.num_bytes)
        self._wake()

    def check(self, number: int) -> None:
        """Whether a reader can begin with frame `number`.

        Raises:
            StreamGone: it was dropped.
        """
        if number < self.first:
            raise StreamGone(
                f"The stream's frames before number {self.first} are not kept any more, so it cannot be resumed after "
                f"number {number - 1}; send the request anew"
            )

    async def read(self, number: int) -> list[bytes]:
        """Frames from `number` on, as many as there are or fit together; waits for one, and is empty at the end.

        Cancelling the wait loses nothing.

        Raises:
            StreamGone: frame `number` was dropped.
        """
        while True:
            self.check(number)
            if number < self.end:
                return self._from(number)
            if self.closed:
                return []
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(news)
            try:
                await news
            finally:
                if news in self._waiting:
                    self._waiting.remove(news)

    def _from(self, number: int) -> list[bytes]:
        start = stop = number - self.first
        size = 0
        while stop < len(self._frames) and (stop == start or size + len(self._frames[stop]) <= MAX_READ_BYTES):
            size += len(self._frames[stop])
            stop += 1
        return self._frames[start:stop]

    def _drop(self, number: int, num_bytes: int) -> None:
        del self._frames[:number]
        self.first += number
        self.num_bytes -= num_bytes
        self._grown(-num_bytes)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)


def _size(frame: bytes) -> int:
    return len(frame) + FRAME_OVERHEAD_BYTES
