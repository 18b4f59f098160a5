"""Bounds that are checked before a body is decoded, because decoding keeps the interpreter's lock.

What costs is values, not bytes: ten megabytes of text take milliseconds, ten megabytes of `[[1],[1],...` seconds.
Only conversations and prompts (`LARGE_FIELDS`) may be large, and there the values can be counted without decoding them.
"""

import re

import msgspec

from limelight.errors import InvalidRequest
from limelight.json_size import has_more_values

LARGE_FIELDS = frozenset({"messages", "prompt", "tokens", "system", "input", "instructions"})
MAX_FIELD_BYTES = 256 * 1024
"""Of any other field. The longest permitted `stop`, all of it escaped, has 192 KiB."""
MAX_ENTRIES = 10_000
"""Messages of a conversation, and content parts and tool calls in all of them together."""
MAX_PROMPTS = 1024
MAX_TOKEN_IDS = 2**20

MAX_VALUES = 40 * MAX_ENTRIES
"""Of a conversation, names and gaps between strings included; a message with two parts has about thirty."""

_LIST_OF_STRINGS = re.compile(rb"\s*\[\s*\"")
_LIST_OF_IDS = re.compile(rb"\s*\[[\s\[]*\d")
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
    if name not in LARGE_FIELDS:
        return
    raw = bytes(value)
    if name in ("prompt", "tokens") or (name == "input" and _LIST_OF_IDS.match(raw)):
        _check_prompt(name, raw)
    elif name != "instructions":
        _check_entries(name, raw)


def _check_entries(name: str, raw: bytes) -> None:
    if has_more_values(raw.decode("latin-1"), MAX_VALUES):
        raise InvalidRequest(
            f"{name} has more than {MAX_VALUES} JSON values and names, at most so many are allowed", param=name
        )
    if _LIST.match(raw):
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
