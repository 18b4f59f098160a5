"""The OpenAPI 3.1 document, from the types of `shapes.py` and the table of request fields."""

import re
from typing import Any

import msgspec

from limelight import __version__
from limelight.http.openapi.shapes import EVENTS, JSON, SHAPES, Shape
from limelight.http.protocol.anthropic.answer import OVERLOADED_STATUS, AnthropicError
from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.http.protocol.fields.field import Effect, Field

ERRORS = {
    400: "The request can never succeed as it stands; `param` names the field",
    401: "No API key, or a wrong one",
    403: "The key may not do this, or the `Host` is not allowed",
    404: "There is no such model, response or stream",
    410: "It was there, and is not any more",
    413: "The body is too large",
    415: "The body is of another media type than JSON",
    429: "The key has as much as it may have; `Retry-After` says when to come back",
    500: "A fault of the server's",
    503: "The server is full, draining or not ready; `Retry-After` says when to come back",
    504: "A limit of time that the request brought ran out before its first token",
}
_PARAMETER = re.compile(r"{(?P<name>\w+):\w+}")

Json = dict[str, Any]


def openapi_document() -> Json:
    """The whole document; equal calls give equal documents."""
    types = _types()
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    rows = {endpoint.path: endpoint.fields for endpoint in ENDPOINTS}
    for (_, path), shape in SHAPES.items():
        if shape.body is not None:
            _describe(components[schema_of[repr(shape.body)]["$ref"].rpartition("/")[2]], rows[path])
    paths: Json = {}
    for (method, path), shape in SHAPES.items():
        operations = paths.setdefault(_plain(path), {})
        operations[method.lower()] = _operation(method, path, shape, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Limelight",
            "version": __version__,
            "description": "Language models over the API of OpenAI, with vLLM's additions.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types() -> list[Any]:
    """Every type of every shape, once."""
    every = (kind for shape in SHAPES.values() for kind in _kinds(shape))
    return list({repr(kind): kind for kind in every if kind is not None}.values())


def _plain(path: str) -> str:
    """A path of Litestar's as OpenAPI writes it."""
    return _PARAMETER.sub(r"{\g<name>}", path)


def _kinds(shape: Shape) -> tuple[Any, ...]:
    return shape.body, shape.answer, shape.event, shape.error, shape.unready


def _describe(schema: Json, rows: Any) -> None:
    """Adds to the properties what the table says of them; refused fields are none."""
    refused = {name: field.note for name, field in rows.items() if field.effect is Effect.REFUSED}
    schema["properties"] = {
        name: {**property_schema, "description": _described(rows[name])}
        for name, property_schema in schema["properties"].items()
        if name not in refused
    }
    schema["x-refused-fields"] = refused


def _described(field: Field) -> str:
    effect = "" if field.effect is Effect.WORKS else f"{field.effect.value}: "
    return f"{effect}{field.note}" or "works"


def _operation(method: str, path: str, shape: Shape, schema_of: Json) -> Json:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": msgspec.json.schema(kind)} for name, kind in shape.parameters.items()
    ]
    operation: Json = {
        "summary": shape.summary,
        "operationId": re.sub(r"\W+", "_", method.lower() + _plain(path)).strip("_"),
        "parameters": parameters,
        "security": [] if shape.public else [{}, {"key": []}],
        "responses": {str(shape.status): _answer(shape, schema_of)} | _errors(shape, schema_of),
    }
    if shape.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[repr(shape.body)]}}}
    return operation


def _answer(shape: Shape, schema_of: Json) -> Json:
    content: Json = {}
    if shape.answer is not None:
        content[shape.media_type] = {"schema": schema_of[repr(shape.answer)]}
    elif shape.status != 204:
        content[shape.media_type] = {"schema": {"type": "string"}}
    if shape.event is not None:
        content[EVENTS] = {"schema": {"type": "string"}, "x-event-schema": schema_of[repr(shape.event)]}
    return {"description": shape.summary} | ({"content": content} if content else {})


def _errors(shape: Shape, schema_of: Json) -> Json:
    kinds = dict.fromkeys(ERRORS, shape.error) | ({503: shape.unready} if shape.unready is not None else {})
    renamed = {503: OVERLOADED_STATUS} if shape.error is AnthropicError else {}
    return {
        str(renamed.get(status, status)): {
            "description": text,
            "content": {JSON: {"schema": schema_of[repr(kinds[status])]}},
        }
        for status, text in ERRORS.items()
    }
