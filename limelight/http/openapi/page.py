"""The documentation page: plain HTML without a script, with one style sheet of ours, so that it needs no network."""

from collections.abc import Iterator, Mapping
from html import escape

from limelight import __version__
from limelight.http.openapi.shapes import SHAPES, Shape
from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.http.protocol.fields.field import Field
from limelight.http.protocol.fields.other_engines import OTHER_ENGINES


def documentation_page() -> str:
    """The page, its links relative."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>Limelight: API</title>\n'
        '<link rel="icon" href="ui/icon.svg" type="image/svg+xml">\n'
        '<link rel="stylesheet" href="ui/docs.css">\n</head>\n<body>\n'
        f"<h1>Limelight {escape(__version__)}: API</h1>\n"
        '<p>For programs: <a href="openapi.json">openapi.json</a>. '
        'To try the model: <a href="./">the chat page</a>.</p>\n'
    )
    rows = {endpoint.path: endpoint.fields for endpoint in ENDPOINTS}
    yield "<nav><ul>\n"
    for (method, path), shape in SHAPES.items():
        link = f'<a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a>'
        yield f"<li>{link} {escape(shape.summary)}\n"
    yield "</ul></nav>\n"
    for (method, path), shape in SHAPES.items():
        yield from _section(method, path, shape, rows.get(path, {}))
    yield "<h2>Names of other engines</h2>\n<p>Refused with this advice, unless unknown fields are ignored.</p>\n"
    yield from _table(OTHER_ENGINES)
    yield "</body>\n</html>\n"


def _section(method: str, path: str, shape: Shape, fields: Mapping[str, Field]) -> Iterator[str]:
    yield f'<h2 id="{_anchor(method, path)}"><code>{method} {escape(path)}</code></h2>\n<p>{escape(shape.summary)}.'
    yield " Needs no key.</p>\n" if shape.public else "</p>\n"
    if shape.body is not None:
        yield from _table(fields)
    if shape.parameters:
        yield f"<p>In the query: {', '.join(f'<code>{escape(name)}</code>' for name in shape.parameters)}.</p>\n"


def _table(fields: Mapping[str, Field]) -> Iterator[str]:
    yield "<table>\n<thead><tr><th>field</th><th>effect</th><th></th></tr></thead>\n<tbody>\n"
    for name, field in fields.items():
        cells = (f"<code>{escape(name)}</code>", field.effect.value, escape(field.note))
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
    yield "</tbody>\n</table>\n"


def _anchor(method: str, path: str) -> str:
    return escape(f"{method} {path}".lower().replace(" ", "-"))
