"""Every option, route and environment variable that a page names is one that the code has."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import opentelemetry.environment_variables
import opentelemetry.sdk.environment_variables
import pytest

from limelight.cli.options import build_parser
from limelight.http import create_app
from limelight.testing import scripted_engine
from tests.docs.pages import ROOT, current_pages

PAGES = current_pages()
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
ROUTE = re.compile(r"`(?:(?:GET|POST|PUT|DELETE) )?(/[^`\s]*)`|127\.0\.0\.1:8000(/[^\s'\"`)]*)")
NUMBER_FORMAT = re.compile(r"I?Q\d_\w+|[A-Z]+_K_[MSL]")

OTHERS = "apt-get|docker|granian|hypercorn|pip|pytest|python -m http.server|uvicorn"
"""Programs whose commands, and rows of tables about them, have options of their own."""
OF_OTHERS = re.compile(rf"^\| (?:{OTHERS}) \|.*|(?<![\w/.])(?:{OTHERS})(?= )[^`\n]*", re.MULTILINE)
OTHERS_OPTIONS = {"--enable-feature": "Prometheus", "--stop-timeout": "docker"}
OTHERS_ROUTES = {
    "/answer": "the application around Limelight's in docs/tracing.md",
    "/etc/limelight/keys": "a file",
    "/llm": "a prefix",
    "/llm/v1/chat/completions": "ours, below the application in docs/tracing.md",
    "/trace": "the end of a route that stands before it",
    "/v1": "the base address that clients are given",
}


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Of a parser and of its commands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options_of(command)


def written_options(folder: Path) -> set[str]:
    """Options of the programs in a folder of the repository."""
    texts = [path.read_text() for path in folder.rglob("*.py")]
    return {option for text in texts for option in re.findall(r'add_argument\(\s*"(--[a-z0-9-]+)"', text)}


OPTIONS = {*options_of(build_parser({})), *written_options(ROOT / "benchmarks"), *written_options(ROOT / "examples")}
ROUTES = {
    re.sub(r"\{[^}]*\}", "{}", route.path) for route in create_app(scripted_engine()).routes if hasattr(route, "path")
}
READ_BY = [
    *(path for path in (ROOT / "limelight").rglob("*.py") if "doctor" not in path.parts),
    ROOT / "Makefile",
    ROOT / "tests" / "conftest.py",
    Path(huggingface_hub.constants.__file__),
    Path(opentelemetry.environment_variables.__file__),
    Path(opentelemetry.sdk.environment_variables.__file__),
]
VARIABLES = {name for path in READ_BY for name in VARIABLE.findall(path.read_text())}


def named(text: str, pattern: re.Pattern[str]) -> set[str]:
    """What a page names in code, commands of other programs left out."""
    return {name for code in CODE.findall(OF_OTHERS.sub("", text)) for name in pattern.findall(code)}


@pytest.mark.parametrize("page", PAGES)
def test_options_are_options(page: str) -> None:
    assert named(PAGES[page], OPTION) - OPTIONS - OTHERS_OPTIONS.keys() == set()


@pytest.mark.parametrize("page", PAGES)
def test_variables_are_read_by_somebody(page: str) -> None:
    names = {name for name in named(PAGES[page], VARIABLE) if not NUMBER_FORMAT.fullmatch(name)}
    assert names - VARIABLES == set()


def routes_in(text: str) -> set[str]:
    """Paths that a text gives as routes, their variable parts as `{}`."""
    found = {(told or called).partition("?")[0].partition("#")[0] for told, called in ROUTE.findall(text)}
    shaped = {re.sub(r"\{[^}]*\}|\b[A-Z]+\b", "{}", path) for path in found}
    return {path if path == "/" else path.rstrip("/") for path in shaped if "..." not in path and "*" not in path}


@pytest.mark.parametrize("page", PAGES)
def test_routes_are_routes(page: str) -> None:
    assert routes_in(PAGES[page]) - ROUTES - OTHERS_ROUTES.keys() == set()


def test_every_route_is_told_of() -> None:
    files_of_pages = {"/ui/{}"}
    assert ROUTES - routes_in(PAGES["docs/http_api.md"]) == files_of_pages


def test_a_name_that_is_none_is_found() -> None:
    text = "`--no-such-option`, `NO_SUCH_VARIABLE` and `GET /v1/no_such_route`, beside `pip install --dest wheels x`"
    assert named(text, OPTION) - OPTIONS == {"--no-such-option"}
    assert named(text, VARIABLE) - VARIABLES == {"NO_SUCH_VARIABLE"}
    assert routes_in(text) - ROUTES == {"/v1/no_such_route"}


def test_what_others_have_is_named_somewhere() -> None:
    text = "\n".join(PAGES.values())
    assert [name for name in (*OTHERS_OPTIONS, *OTHERS_ROUTES) if name not in text] == []
    assert not OTHERS_OPTIONS.keys() & OPTIONS
    assert not OTHERS_ROUTES.keys() & ROUTES
