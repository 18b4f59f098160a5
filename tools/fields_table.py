"""Writes docs/api_fields.md from the table in the code; with `--check`, only says whether the page is stale."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script, it is not beside the package

from limelight.http.protocol.fields.endpoints import ENDPOINTS  # noqa: E402
from limelight.http.protocol.fields.field import Field  # noqa: E402
from limelight.http.protocol.fields.other_engines import OTHER_ENGINES  # noqa: E402

PAGE = ROOT / "docs" / "api_fields.md"
INTRODUCTION = """# Request fields

Written by `tools/fields_table.py` from the table that the server decodes requests with; a running server says the same
under `GET /v1/capabilities`.

A field *works*, or it is accepted with *no effect*, or it is *refused* by name with a 400. No effect is for fields
about who asks, how the request is filed, and what may be cached: leaving them out cannot change the answer. An explicit
`null` is the same as leaving a field out, and the values of a refused field that ask for what happens anyway are let
through.
"""
OTHER_NAMES = """Other engines' names for something are refused with this advice, except for the values that ask for
what happens anyway. `--unknown-fields ignore` lets them all through, without effect, and lists them in the header
`x-limelight-ignored-fields`.
"""


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Writes the page; with `--check`, returns 1 if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is stale")
    options = parser.parse_args(arguments)
    text = as_markdown()
    if not options.check:
        page.write_text(text)
        return 0
    if not page.exists() or page.read_text() != text:
        print(f"{page} is stale; run python tools/fields_table.py", file=sys.stderr)
        return 1
    return 0


def as_markdown() -> str:
    """The page."""
    endpoints = [f"## `POST {endpoint.path}`\n\n{_table(endpoint.fields)}" for endpoint in ENDPOINTS]
    other_engines = f"## Names of other engines\n\n{OTHER_NAMES}\n{_table(OTHER_ENGINES)}"
    return "\n".join([INTRODUCTION, *endpoints, other_engines])


def _table(fields: Mapping[str, Field]) -> str:
    rows = [("field", "effect", ""), ("---", "---", "---")]
    rows += [(f"`{name}`", field.effect.value, field.note) for name, field in fields.items()]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
