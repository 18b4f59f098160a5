"""A JSON schema on its way to a grammar: limits that llguidance lacks, and the options that reach into the schema."""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.structured_outputs import StructuredOutputsParams

MAX_SCHEMA_BYTES = 512 * 1024
MAX_NESTING = 64
MAX_REFERENCE_LEVELS = 1200
"""Levels of all definitions that are referred to, together: compiling goes down as deep, on a stack of a thread."""
MAX_MULTIPLE = 20_000
"""Least common multiple of all `multipleOf`, in units of their last digit: an automaton has a state for each."""
WHITESPACE_PATTERN = r"\x20{1,2}|\n[\x20\x09]{0,7}"
"""Between the parts of JSON: one or two blanks, or a line break and its indentation. Bounded: small models go on
with white space until their tokens are spent."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"),
    *("not", "contains", "propertyNames", "if", "then", "else"),
)


def json_grammar(schema: Any, params: StructuredOutputsParams) -> str:
    """The grammar of texts that fit `schema`, in llguidance's notation.

    Args:
        schema: as an object, a boolean, or as text.
        params: the options that concern JSON.

    Raises:
        InvalidRequest: it is no schema, or beyond a limit. Names no field.
    """
    document = checked_schema(schema)
    if params.disable_additional_properties:
        for part in _schemas(document):
            if "properties" in part or "patternProperties" in part:
                part["additionalProperties"] = False
    document["x-guidance"] = {
        "lenient": False,
        "coerce_one_of": False,
        "whitespace_flexible": not params.disable_any_whitespace,
        "whitespace_pattern": None
        if params.disable_any_whitespace
        else params.whitespace_pattern or WHITESPACE_PATTERN,
    }
    return msgspec.json.encode({"grammars": [{"json_schema": document}]}).decode()


def checked_schema(schema: Any) -> dict[str, Any]:
    """The schema as a document of its own, within the limits.

    Raises:
        InvalidRequest: it is no schema, or beyond a limit. Names no field.
    """
    document = _document(schema)
    if document is True:
        document = {}
    if document is False:
        raise InvalidRequest("the schema is false, which nothing fits")
    if not isinstance(document, dict):
        raise InvalidRequest(f"a JSON schema is an object, not {document!r:.80}")
    depths = _depths(document)
    if depths[id(document)] > MAX_NESTING:
        raise InvalidRequest(
            f"the schema is nested {depths[id(document)]} levels deep; at most {MAX_NESTING} are allowed"
        )
    _check_references(document, depths)
    _check_multiples(document)
    return document


def _document(schema: Any) -> Any:
    try:
        text = schema if isinstance(schema, str) else msgspec.json.encode(schema)
        if len(text) > MAX_SCHEMA_BYTES:
            raise InvalidRequest(
                f"the schema has {len(text):,} bytes as JSON; at most {MAX_SCHEMA_BYTES:,} are allowed"
            )
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"the schema is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest(f"the schema is nested too deep; at most {MAX_NESTING} levels are allowed") from error


def _depths(document: dict[str, Any]) -> dict[int, int]:
    """Levels of arrays and objects in each array and object, itself included, by its id."""
    order: list[Any] = [document]
    for value in order:
        inner = value.values() if isinstance(value, dict) else value
        order.extend(item for item in inner if isinstance(item, dict | list))
    depths: dict[int, int] = {}
    for value in reversed(order):
        inner = value.values() if isinstance(value, dict) else value
        depths[id(value)] = 1 + max((depths[id(item)] for item in inner if isinstance(item, dict | list)), default=0)
    return depths


def _check_references(document: dict[str, Any], depths: Mapping[int, int]) -> None:
    targets = {part["$ref"] for part in _objects(document) if isinstance(part.get("$ref"), str)}
    levels = 0
    for target in targets:
        found = _target(document, target)
        levels += depths.get(id(found), depths[id(document)])
    if levels > MAX_REFERENCE_LEVELS:
        raise InvalidRequest(
            f"the definitions that the schema refers to are {levels:,} levels deep together; at most "
            f"{MAX_REFERENCE_LEVELS:,} are allowed"
        )


def _target(document: Any, reference: str) -> Any:
    """What a JSON pointer (RFC 6901) in the schema itself refers to; None for anything else."""
    if not reference.startswith("#/"):
        return None
    found = document
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _check_multiples(document: dict[str, Any]) -> None:
    common = 1
    for part in _objects(document):
        multiple = part.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool) and multiple > 0:
            digits = Decimal(str(multiple)).normalize().as_tuple().digits
            common = math.lcm(common, int("".join(map(str, digits))))
    if common > MAX_MULTIPLE:
        raise InvalidRequest(
            f"the multipleOf values of the schema have the least common multiple {common:,} in units of their last "
            f"digit; at most {MAX_MULTIPLE:,} is supported"
        )


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    """All objects, schemas or not."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _schemas(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and all that it is made of; not what only looks like one (a value of `enum`)."""
    waiting: list[Any] = [document]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for name in _MAPS:
            if isinstance(schema.get(name), dict):
                waiting.extend(schema[name].values())
        for name in _LISTS:
            if isinstance(schema.get(name), list):
                waiting.extend(schema[name])
        waiting.extend(schema[name] for name in _SINGLE if name in schema)
