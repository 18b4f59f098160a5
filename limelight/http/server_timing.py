"""The `Server-Timing` response header (W3C Server Timing): how long the parts of a request took, as far as is known."""

from collections.abc import Iterator, Sequence

import msgspec

from limelight.http.protocol.timings import longest
from limelight.telemetry.timeline import RequestTimeline

_METRICS = (
    ("admission", "admission"),
    ("tokenize", "tokenize"),
    ("queue", "queue"),
    ("prefill", "prefill"),
    ("ttft", "time_to_first_token"),
    ("decode", "decode"),
    ("total", "total"),
)
"""Names in the header -> of `Timings`."""


def timing_headers(
    timelines: Sequence[RequestTimeline], seconds: float, origin: bytes | None, timing_origins: tuple[str, ...]
) -> Iterator[tuple[bytes, bytes]]:
    """The header, and the one that lets pages of other origins read it.

    Args:
        timelines: of the engine's requests behind the answer; of several the longest time of each part is told.
        seconds: since the HTTP request arrived: the total of one that never became a request of the engine's.
        origin: of the page that asks, if one does.
        timing_origins: that may read it; `*` is all.
    """
    yield b"server-timing", server_timing(timelines, seconds)
    if origin is not None and ("*" in timing_origins or origin.decode("latin-1") in timing_origins):
        yield b"timing-allow-origin", b"*" if "*" in timing_origins else origin


def server_timing(timelines: Sequence[RequestTimeline], seconds: float) -> bytes:
    """The header's value; see `timing_headers`."""
    if not timelines:
        return b"total;dur=%.3f" % (seconds * 1e3)
    known = longest(timelines)
    if known.total is None:  # with the first byte of a stream decoding has hardly begun
        known = msgspec.structs.replace(known, decode=None)
    parts = ((name, getattr(known, attribute)) for name, attribute in _METRICS)
    return b", ".join(b"%b;dur=%.3f" % (name.encode(), took * 1e3) for name, took in parts if took is not None)
