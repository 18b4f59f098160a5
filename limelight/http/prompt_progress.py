"""Comments that tell a client how far its prompt is, for those that ask for them. Readers of events do not see them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import msgspec

from limelight.http.stream_body import StreamBody
from limelight.stream import PromptProgress, Stream

PROGRESS_SECONDS = 0.25
"""Between two looks. A comment goes out only if something has changed."""

T = TypeVar("T")


class ProgressComments:
    """Writes a comment whenever there is news of the prompt.

    Args:
        line: gives the comment line as it would be now, or nothing.
        end: what follows a line: a line feed, where readers split at blank lines.
        seconds: between two looks.
    """

    __slots__ = ("_body", "_end", "_line", "_seconds", "_told")

    def __init__(self, body: StreamBody, line: Callable[[], bytes], end: bytes, seconds: float) -> None:
        self._body = body
        self._line = line
        self._end = end
        self._seconds = seconds
        self._told = b""

    async def during(self, wait: Callable[[], Awaitable[T]]) -> T:
        """What `wait` gives, which loses nothing when it is cancelled; meanwhile progress is told."""
        while True:
            await self.tell()
            with anyio.move_on_after(self._seconds):
                return await wait()

    async def tell(self) -> None:
        """Write the line if it is another one than before."""
        line = self._line()
        if line not in (b"", self._told):
            await self._body.write(line + self._end)
            self._told = line


def progress_line(streams: Sequence[Stream]) -> bytes:
    """One comment line about all `streams` together: the last position, sums of tokens; empty if nothing is known."""
    known = [progress for stream in streams if (progress := stream.prompt_progress()) is not None]
    if not known:
        return b""
    together = PromptProgress(
        queue_position=max(progress.queue_position for progress in known),
        prompt_tokens=sum(progress.prompt_tokens for progress in known),
        prompt_tokens_done=sum(progress.prompt_tokens_done for progress in known),
        cached_tokens=sum(progress.cached_tokens for progress in known),
    )
    return b": progress " + msgspec.json.encode(together) + b"\n"
