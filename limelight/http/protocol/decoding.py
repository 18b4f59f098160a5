"""From the bytes of a request body to a typed request, strictly: nothing is coerced, nothing is dropped in silence.

Errors say which field is at fault and never show a Python name or a traceback. What every field does is in `fields/`.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from limelight.errors import InvalidRequest, UnknownField, UnsupportedField
from limelight.http.protocol.fields.field import Effect, Field
from limelight.http.protocol.fields.other_engines import OTHER_ENGINES, SIBLING_FIELDS
from limelight.http.protocol.sizes import check_size
from limelight.http.settings import UnknownFields
from limelight.quoting import shorten

Body = TypeVar("Body", bound=msgspec.Struct)

MAX_UNKNOWN_FIELDS = 64
NEAR_MISS = 0.8
"""Similarity (difflib's ratio) from which an unknown name counts as a misspelling."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NULL = b"null"
_BACKSLASH = ord("\\")
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
"""Begins with letters, so that the search is fast. Whether the backslash is itself escaped is asked afterwards."""
MAX_SURROGATES_TRIED = 1000

_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_of_names = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class Decoder(Generic[Body]):
    """Decodes the bodies of one endpoint.

    Args:
        body: the Struct to decode into; it has a field for everything in `fields` that is not refused.
        fields: the endpoint's rows of the table.
        nested: fields that hold an object, or a list of them -> the names that such an object may have.
    """

    def __init__(
        self, body: type[Body], fields: Mapping[str, Field], nested: Mapping[str, frozenset[str]] | None = None
    ) -> None:
        self._decoder = msgspec.json.Decoder(body)
        self._fields = fields
        self._nested = nested or {}

    def decode(self, raw: bytes, unknown_fields: UnknownFields = "suggest") -> tuple[Body, tuple[str, ...]]:
        """The request in `raw`, and the names of the fields that were ignored (`"messages[0].id"`).

        Raises:
            InvalidRequest: the body is not JSON, not an object, or a field has the wrong type.
            UnsupportedField: a field that this server does not honour.
            UnknownField: a field that no supported API has.
        """
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
        if not raw.strip():
            raise InvalidRequest("The request body is empty; send a JSON object")
        try:
            given = _names.decode(raw)
            if len(given) > len(self._fields) + MAX_UNKNOWN_FIELDS:
                raise _too_many_unknown()
            unknown = [name for name, value in given.items() if self._check(name, value)]
            unknown_within = self._unknown_within(given)
            body = self._decoder.decode(raw)
            self._judge(given, unknown, unknown_within, unknown_fields)
        except msgspec.ValidationError as error:
            raise _invalid(str(error)) from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(_malformed(raw, str(error))) from None
        except UnicodeDecodeError:
            raise InvalidRequest("The request body is not valid UTF-8") from None
        except RecursionError:
            raise InvalidRequest("The request body is nested too deeply") from None
        return body, (*unknown, *(path for _, path, _ in unknown_within))

    def _check(self, name: str, value: msgspec.Raw) -> bool:
        """Whether the field is unknown. A refused one raises, unless its value asks for what happens anyway."""
        field = self._fields.get(name)
        if field is None:
            return True
        if field.effect is Effect.REFUSED and not _accepted(field, value):
            raise UnsupportedField(f"{name} is not supported: {field.note}", param=name)
        check_size(name, value)
        return False

    def _judge(
        self,
        given: Mapping[str, msgspec.Raw],
        unknown: Sequence[str],
        unknown_within: Sequence[tuple[str, str, str]],
        unknown_fields: UnknownFields,
    ) -> None:
        """Raise for the unknown fields that may not be ignored."""
        if len(unknown) + len(unknown_within) > MAX_UNKNOWN_FIELDS:
            raise _too_many_unknown()
        if unknown_fields == "ignore":
            return
        for name in unknown:
            _check_unknown(name, given[name], tuple(self._fields), unknown_fields)
        for field, path, name in unknown_within:
            _check_misspelling(path, name, tuple(self._nested[field]), unknown_fields)

    def _unknown_within(self, given: Mapping[str, msgspec.Raw]) -> list[tuple[str, str, str]]:
        """Field, path and name of every unknown name inside the nested objects."""
        found: list[tuple[str, str, str]] = []
        for field, known in self._nested.items():
            raw = given.get(field)
            if raw is None:
                continue
            try:
                objects = _objects(field, raw)
            except msgspec.ValidationError:
                continue  # not objects: decoding into the Struct says so, with the right path
            for place, names in objects:
                if len(names) > len(known) + MAX_UNKNOWN_FIELDS:
                    raise _too_many_unknown()
                found += [(field, f"{place}.{name}", name) for name in names.keys() - known]
        return found


def _objects(field: str, raw: msgspec.Raw) -> list[tuple[str, Mapping[str, msgspec.Raw]]]:
    """The object in `raw`, or all of a list, each with where it stands; none if it is something else."""
    start = bytes(raw).lstrip()[:1]
    if start == b"{":
        return [(field, _names.decode(raw))]
    if start == b"[":
        return [(f"{field}[{index}]", names) for index, names in enumerate(_list_of_names.decode(raw))]
    return []


def _accepted(field: Field, value: msgspec.Raw) -> bool:
    raw = bytes(value).strip()
    if raw == _NULL:
        return True
    if len(raw) > 64:
        return False
    decoded = msgspec.json.decode(raw)
    return any(decoded == accepted and type(decoded) is type(accepted) for accepted in field.accepts)


def _too_many_unknown() -> UnknownField:
    return UnknownField(f"The request has more than {MAX_UNKNOWN_FIELDS} unknown fields")


def _check_unknown(name: str, value: msgspec.Raw, known: Sequence[str], unknown_fields: UnknownFields) -> None:
    other = OTHER_ENGINES.get(name)
    if other is None:
        sibling = SIBLING_FIELDS.get(name)
        if sibling is not None:
            raise UnknownField(f"{name} is not a field of this endpoint: {sibling}", param=name)
        _check_misspelling(name, name, known, unknown_fields)
    elif not _accepted(other, value):
        raise UnknownField(f"{name} is a field of another engine: {other.note}", param=name)


def _check_misspelling(path: str, name: str, known: Sequence[str], unknown_fields: UnknownFields) -> None:
    meant = near_miss(name, known)
    shown = shorten(path, 80)
    if meant is not None:
        raise UnknownField(f"{shown} is not a field of this endpoint; did you mean {meant}?", param=shown)
    if unknown_fields == "refuse":
        raise UnknownField(f"{shown} is not a field of this endpoint", param=shown)


def near_miss(name: str, known: Sequence[str]) -> str | None:
    """The known name that `name` probably stands for: the same but for case and separators, or spelled much alike."""
    if len(name) > 64:
        return None
    plain = {other.replace("_", ""): other for other in known}
    letters = re.sub(r"[-_. ]", "", name).lower()
    same = plain.get(letters) or next((plain[other] for other in plain if _swapped(letters, other)), None)
    if same is not None:
        return same
    matches = difflib.get_close_matches(name.lower(), known, n=1, cutoff=NEAR_MISS)
    return matches[0] if matches else None


def _swapped(name: str, other: str) -> bool:
    """Whether two letters changed places."""
    different = [place for place, (one, two) in enumerate(zip(name, other, strict=False)) if one != two]
    return len(name) == len(other) and len(different) == 2 and sorted(name) == sorted(other)


def _invalid(text: str) -> InvalidRequest:
    """The decoder's own words with the path taken apart: "Expected `int`, got `str` - at `$.n`"."""
    match = _PATH.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidRequest(f"{path} is missing", param=path)
    path = path.replace("[...]", "")
    what = shorten(what.replace("`", "").replace("object | null", "object").replace(" | null", ""), 200)
    if not path:
        return InvalidRequest(f"The request body must be a JSON object ({what[:1].lower()}{what[1:]})")
    return InvalidRequest(f"{shorten(path)}: {what[:1].lower()}{what[1:]}", param=path)


def _malformed(raw: bytes, text: str) -> str:
    """The decoder reports a lone surrogate at the end of a string as truncation; say what it really is."""
    lone = _lone_surrogate(raw)
    if lone is not None:
        escape = raw[lone : lone + 6].decode("ascii")
        return (
            f"The request body is not valid Unicode: {escape} at byte {lone} is half of a character "
            "(a string was cut inside a surrogate pair)"
        )
    if text == "Invalid UTF-8 encoded string":
        return "The request body is not valid UTF-8"
    return f"The request body is not valid JSON: {text.removeprefix('JSON is malformed: ')}"


def _lone_surrogate(raw: bytes) -> int | None:
    """Where an escape stands for half of a character."""
    for match in islice(_LONE_SURROGATE.finditer(raw), MAX_SURROGATES_TRIED):
        start = end = match.start()
        while start and raw[start - 1] == _BACKSLASH:
            start -= 1
        if (end - start) % 2 == 0:
            return end
    return None
