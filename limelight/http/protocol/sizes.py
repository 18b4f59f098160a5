"""Bounds that are checked before a body is decoded, because decoding holds up the event loop.

What costs is values, not bytes: ten megabytes of text take milliseconds, ten megabytes of `[[1],[1],...` seconds.
Only `messages`, `input` and `prompt` may be large, and there the values can be counted without decoding them.
"""

import re
from itertools import islice

import msgspec

from limelight.errors import InvalidRequest

LARGE_FIELDS = frozenset({"messages", "prompt", "tokens", "system", "input", "instructions"})
MAX_FIELD_BYTES = 256 * 1024
"""Of any other field. The longest permitted `stop`, all of it escaped, has 192 KiB."""
MAX_ENTRIES = 10_000
"""Messages of a conversation, and content parts and tool calls in all of them together."""
MAX_PROMPTS = 1024
MAX_TOKEN_IDS = 2**20

MAX_OBJECTS = 4 * MAX_ENTRIES
_OBJECT = re.compile(rb"\{\s*\"")
_LIST_OF_STRINGS = re.compile(rb"\s*\[\s*\"")
_LIST = re.compile(rb"\s*\[")

_entries = msgspec.json.Decoder(list[msgspec.Raw])


def check_size(name: str, value: msgspec.Raw) -> None:
    """Whether the known field `name` may be decoded.

    Raises:
        InvalidRequest: names the field, its size and the limit.
        msgspec.DecodeError: the value is not JSON.
    """
    num_bytes = memoryview(value).nbytes
    if name not in LARGE_FIELDS and num_bytes > MAX_FIELD_BYTES:
        raise InvalidRequest(f"{name} has {num_bytes} bytes, at most {MAX_FIELD_BYTES} are allowed", param=name)
    if name in ("messages", "input"):
        _check_entries(name, bytes(value))
    if name in ("prompt", "tokens"):
        _check_prompt(name, bytes(value))


def _check_entries(name: str, raw: bytes) -> None:
    if not _LIST.match(raw):
        return
    # Each entry, part and call is an object or two. Only where there are very many braces is it asked whether they are
    # within strings, where a quote behind a brace is escaped.
    if raw.count(b"{") > MAX_OBJECTS:
        _limit(name, sum(1 for _ in islice(_OBJECT.finditer(raw), MAX_OBJECTS + 1)), "objects", MAX_OBJECTS)
    _limit(name, len(_entries.decode(raw)), "entries", MAX_ENTRIES)


def _check_prompt(name: str, raw: bytes) -> None:
    if _LIST_OF_STRINGS.match(raw):
        num_quotes = raw.count(b'"')
        _limit(name, (num_quotes - raw.count(b'\\"')) // 2, "prompts", MAX_PROMPTS)  # there are at least as many
        if num_quotes > 2 * MAX_PROMPTS:
            _limit(name, len(_entries.decode(raw)), "prompts", MAX_PROMPTS)
    elif _LIST.match(raw):
        # Numbers, or lists of them: no string can hold a bracket or a comma. A mixed list is refused anyway.
        _limit(name, raw.count(b"[") - 1, "prompts", MAX_PROMPTS)
        _limit(name, raw.count(b",") + 1, "token ids", MAX_TOKEN_IDS)


def _limit(name: str, number: int, what: str, limit: int) -> None:
    if number > limit:
        raise InvalidRequest(f"{name} has {number} {what}, at most {limit} are allowed", param=name)
