"""How messages say sizes and lists."""

from collections.abc import Iterable

from limelight.quoting import shorten

MAX_LISTED = 10
MAX_ENTRY_CHARACTERS = 300


def as_size(num_bytes: int) -> str:
    """A size for people: `1.50 GiB`, `270.0 MiB`, `12.0 KiB`."""
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.2f} GiB"
    if num_bytes >= 2**20:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / 2**10:.1f} KiB"


def listed(entries: Iterable[object], most: int = MAX_LISTED, separator: str = ", ") -> str:
    """The first `most` entries, none of them endless, and how many more there are."""
    texts = [shorten(str(entry), MAX_ENTRY_CHARACTERS) for entry in entries]
    rest = len(texts) - most
    return separator.join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")
