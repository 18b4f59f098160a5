"""`response_format`: what the text of an answer must look like."""

from collections.abc import Mapping
from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.http.protocol.json_schemas import check_schema
from limelight.quoting import shorten
from limelight.structured_outputs import StructuredOutputsParams

FIELD = "response_format"
SCHEMA = f"{FIELD}.json_schema"


def answer_form(
    response_format: Mapping[str, Any] | None, structured_outputs: StructuredOutputsParams | None
) -> StructuredOutputsParams | None:
    """The form, None where `response_format` asks for none.

    A schema is followed with `strict` and without it: nothing is gained by an answer that does not.

    Args:
        structured_outputs: the other field that may say it.

    Raises:
        InvalidRequest: the type is not known, what belongs to it is missing or malformed, or both fields say it.
    """
    form = None if response_format is None else _form(response_format)
    if form is not None and structured_outputs is not None:
        raise InvalidRequest(
            "response_format and structured_outputs both say what the answer must look like; send one of them",
            param=FIELD,
        )
    return form


def _form(response_format: Mapping[str, Any]) -> StructuredOutputsParams | None:
    match response_format.get("type"):
        case "text":
            return None
        case "json_object":
            return StructuredOutputsParams(json_object=True, param=FIELD)
        case "json_schema":
            return _json_schema(response_format.get("json_schema"))
        case "structural_tag":
            text = msgspec.json.encode(response_format).decode()
            return StructuredOutputsParams(structural_tag=text, param=FIELD)
        case None:
            raise InvalidRequest(f"{FIELD}.type is missing", param=f"{FIELD}.type")
        case kind:
            raise InvalidRequest(
                f"{FIELD}.type is {shorten(repr(kind), 60)}, must be text, json_object, json_schema or structural_tag",
                param=f"{FIELD}.type",
            )


def _json_schema(described: Any) -> StructuredOutputsParams:
    if not isinstance(described, dict):
        raise InvalidRequest(f"{SCHEMA} is missing; send an object with name and schema", param=SCHEMA)
    name = described.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{SCHEMA}.name is missing; give the schema a name", param=f"{SCHEMA}.name")
    schema = described.get("schema")
    if schema is None:
        raise InvalidRequest(
            f'{SCHEMA}.schema is missing; send a JSON schema, or use the type "json_object"', param=f"{SCHEMA}.schema"
        )
    check_schema(schema, f"{SCHEMA}.schema")
    return StructuredOutputsParams(json=schema, param=f"{SCHEMA}.schema")
