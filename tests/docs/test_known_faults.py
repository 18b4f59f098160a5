"""Every row of the page of known faults names tests, and each of them exists."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

ROW = re.compile(r"^\| (?!what happened elsewhere )(?P<cells>.*) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
PAGE = (ROOT / "docs" / "known_faults.md").read_text()


def functions_of(path: Path) -> set[str]:
    """Names of the functions of a module; none if there is no such file."""
    if not path.exists():
        return set()
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def untested(page: str) -> list[str]:
    """Rows that have no test, and tests that are not there."""
    found = []
    for row in ROW.finditer(page):
        tests = TEST.findall(row["cells"].split(" | ")[-1])
        if not tests:
            found.append(row["cells"])
        found += [f"{path}::{name}" for path, name in tests if name not in functions_of(ROOT / "tests" / path)]
    return found


def test_every_row_is_held_by_tests_that_exist() -> None:
    assert len(ROW.findall(PAGE)) > 100
    assert untested(PAGE) == []


@pytest.mark.parametrize(
    "tests", ["none", "`cases/test_usage.py::test_nothing`", "`cases/test_nowhere.py::test_a`", "`docs/pages.py::ROOT`"]
)
def test_a_row_without_a_test_is_found(tests: str) -> None:
    assert len(untested(f"| what happened elsewhere | here | test |\n|---|---|---|\n| a | b | {tests} |\n")) == 1
