"""Writes tests/embedding/public_api.txt: every public name with its signature and fields, as the source has them.

python tools/public_api.py

A difference in that file is a change of the interface: it wants a line in CHANGELOG.md.
"""

import ast
import enum
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script, it is not beside the package

FILE = ROOT / "tests" / "embedding" / "public_api.txt"
MODULES = ["limelight", "limelight.errors", "limelight.http", "limelight.testing"]
"""Whose names are public. Those of `limelight.errors` are its classes, the others are listed by `__all__`."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def public_api() -> str:
    """The whole text of the file."""
    parts = [
        f"# {module}\n\n" + "\n".join(_described(name, value) for name, value in _names(module)) for module in MODULES
    ]
    return "\n".join(parts)


def _names(module_name: str) -> list[tuple[str, Any]]:
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module_name and not name.startswith("_")
    ]
    return [(name, getattr(module, name)) for name in sorted(names)]


def _described(name: str, value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"{name} = {value!r}\n" if isinstance(value, int) else f"{name}\n"
    [node] = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    if isinstance(node, ast.ClassDef):
        return "".join(f"{line}\n" for line in _class_lines(node, is_enum=isinstance(value, enum.EnumType)))
    assert isinstance(node, Definition), name
    return f"{_signature(node)}\n"


def _class_lines(node: ast.ClassDef, *, is_enum: bool) -> Iterator[str]:
    """The head of a class, its fields with their defaults, and its methods."""
    bases = [ast.unparse(base) for base in (*node.bases, *node.keywords)]
    yield f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"
    for member in node.body:
        match member:
            case ast.AnnAssign(target=ast.Name(id=field)) if not field.startswith("_"):
                yield f"    {ast.unparse(member)}"
            case ast.Assign(targets=[ast.Name(id=field)]) if is_enum or not field.startswith("_"):
                yield f"    {ast.unparse(member)}"
            case ast.FunctionDef() | ast.AsyncFunctionDef() if member.name == "__init__" or member.name[0] != "_":
                yield from (f"    @{ast.unparse(decorator)}" for decorator in member.decorator_list)
                yield f"    {_signature(member)}"
            case _:
                continue


def _signature(node: Definition) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{kind} {node.name}({ast.unparse(node.args)}){returned}"


if __name__ == "__main__":
    FILE.write_text(public_api())
