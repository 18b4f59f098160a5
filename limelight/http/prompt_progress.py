"""Comments that tell a client how far its prompt is, for those that ask for them. Readers of events do not see them."""

from collections.abc import Sequence

import msgspec

from limelight.stream import PromptProgress, Stream

PROGRESS_SECONDS = 0.25
"""Between two looks. A comment goes out only if something has changed."""


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
