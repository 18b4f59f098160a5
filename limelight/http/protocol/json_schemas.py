"""Whether a value has the shape of a JSON schema, as far as that can be told without compiling it."""

from collections.abc import Iterator
from typing import Any

from limelight.errors import InvalidRequest
from limelight.quoting import shorten

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")


def check_schema(schema: Any, where: str) -> None:
    """Look at the keywords that every schema is made of.

    Args:
        where: the request field; errors name it, and tell the place within.

    Raises:
        InvalidRequest: it is no schema.
    """
    waiting = [(schema, "")]
    while waiting:
        part, place = waiting.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise _refusal(where, place, f"is {part!r:.60}, must be an object")
        _check_keywords(part, where, place)
        waiting += _parts(part, place)


def _check_keywords(part: dict[str, Any], where: str, place: str) -> None:
    kinds = part.get("type")
    for kind in kinds if isinstance(kinds, list) else [] if kinds is None else [kinds]:
        if kind not in TYPES:
            raise _refusal(where, f"{place}.type", f"is {kind!r:.60}, must be one of {', '.join(TYPES)}")
    for name in _MAPS:
        if not isinstance(part.get(name, {}), dict):
            raise _refusal(where, f"{place}.{name}", "must be an object")
    for name in (*_LISTS, "enum", "required"):
        if not isinstance(part.get(name, []), list):
            raise _refusal(where, f"{place}.{name}", "must be a list")
    if not all(isinstance(name, str) for name in part.get("required", [])):
        raise _refusal(where, f"{place}.required", "must be a list of strings")


def _parts(part: dict[str, Any], place: str) -> Iterator[tuple[Any, str]]:
    for name in _MAPS:
        yield from ((inner, f"{place}.{name}.{key}") for key, inner in part.get(name, {}).items())
    for name in _LISTS:
        yield from ((inner, f"{place}.{name}[{index}]") for index, inner in enumerate(part.get(name, [])))
    for name in _SCHEMAS:
        inner = part.get(name)
        if isinstance(inner, list):
            yield from ((entry, f"{place}.{name}[{index}]") for index, entry in enumerate(inner))
        elif inner is not None:
            yield inner, f"{place}.{name}"


def _refusal(where: str, place: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where} is not a JSON schema: {shorten(place.lstrip('.') or 'it', 100)} {what}", param=where
    )
