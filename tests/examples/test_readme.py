"""The table of examples is complete, and each example says what it shows and how to run it."""

import ast
import re

import pytest

from tests.examples.running import EXAMPLES

LISTED = re.findall(r"^\| \[([^]]+)\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


def test_the_table_lists_every_example_once():
    there = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert sorted(target for _, target in LISTED) == sorted(there)
    assert all(name.rstrip("/") == target for name, target in LISTED)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_program_says_in_its_docstring_how_to_run_it(program):
    docstring = ast.get_docstring(ast.parse(program.read_text()))
    first, *rest = docstring.splitlines()
    assert first.endswith((".", "?"))
    assert re.search(rf"^.*\b{program.stem}\b", "\n".join(rest), re.MULTILINE)


@pytest.mark.parametrize("folder", sorted(path for path in EXAMPLES.iterdir() if path.is_dir()), ids=lambda p: p.name)
def test_a_folder_has_a_readme_with_commands(folder):
    if folder.name != "__pycache__":
        assert "```" in (folder / "README.md").read_text()
