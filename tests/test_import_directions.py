"""The import table of docs/architecture.md (section 2), enforced on every import statement of the package."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "limelight"
MODULES = sorted(PACKAGE.rglob("*.py"))


class Row:
    """One row of the table: what the parts named in it may import."""

    def __init__(self, allowed: list[str], forbidden: list[str]) -> None:
        self.allowed = allowed
        self.forbidden = forbidden


def read_table(text: str) -> dict[str, Row]:
    """Rows by part; `leaves` is spelt out."""
    rows: dict[str, Row] = {}
    leaves: list[str] = []
    section = text[text.index("Import direction.") : text.index("## 3.")]
    for line in section.splitlines():
        if not line.startswith("| `"):
            continue
        parts, allowed, forbidden = (re.findall(r"`([\w.]+)`", cell) for cell in line.strip("|").split("|"))
        leaves = leaves or parts
        allowed = [name for entry in allowed for name in (leaves if entry == "leaves" else [entry])]
        rows.update({part: Row(allowed, forbidden) for part in parts})
    return rows


TABLE = read_table((ROOT / "docs" / "architecture.md").read_text())


def name_of(path: Path) -> str:
    """`limelight/http/app.py` -> `http.app`; the package itself is ""."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def covers(part: str, name: str) -> bool:
    return name == part or name.startswith(part + ".")


def part_of(name: str) -> str | None:
    """The part of the table that module `name` belongs to: the longest one that covers it."""
    return max((part for part in TABLE if covers(part, name)), key=len, default=None)


def imported_by(source: str, package: str) -> Iterator[str]:
    """Full dotted names of all imports, wherever they stand; `package` is the module's package, for relative ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def violations(name: str, source: str, *, is_package: bool = False) -> list[str]:
    """What module `name` imports against the table."""
    part = part_of(name)
    if part is None:
        return [f"{name} has no row in the table"]
    row = TABLE[part]
    full = f"limelight.{name}"
    package = full if is_package else full.rpartition(".")[0]
    found = []
    for target in imported_by(source, package):
        inside = target.removeprefix("limelight.")
        if target.partition(".")[0] != "limelight":
            if any(covers(forbidden, target) for forbidden in row.forbidden):
                found.append(f"{name} imports {target}")
        elif inside == "__version__":  # the one value of the package's own file
            continue
        elif not any(covers(allowed, inside) for allowed in [part, *row.allowed]):
            found.append(f"{name} imports {target}")
    return found


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path)], ids=name_of)
def test_every_module_keeps_the_import_direction(path: Path) -> None:
    assert violations(name_of(path), path.read_text(), is_package=path.name == "__init__.py") == []


def test_the_package_itself_imports_its_names_for_the_type_checker_only() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    eager = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert [module for module in eager if module and module.startswith("limelight")] == []


def test_every_part_and_every_target_of_the_table_exists() -> None:
    names = {name_of(path) for path in MODULES}
    mentioned = {*TABLE, *(allowed for row in TABLE.values() for allowed in row.allowed)}
    assert {name for name in mentioned if name not in names} == set()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("http.app", "from limelight.actors import request"),
        ("http.app", "import torch.nn"),
        ("http.app", "from ..kernels import reference"),
        ("actors.scheduling.planner", "def f():\n    import time"),
        ("actors.scheduling.planner", "from limelight.actors.channel import Channel"),
        ("kernels.reference", "from limelight import models"),
        ("models.families.llama", "from limelight.engine import Engine"),
        ("engine", "from limelight.actors.scheduler import SchedulerActor"),
        ("testing", "import torch"),
        ("generation", "if TYPE_CHECKING:\n    from limelight.engine import Engine"),
        ("nowhere", ""),
    ],
)
def test_an_import_against_the_table_is_found(name: str, source: str) -> None:
    assert len(violations(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("http.app", "from limelight.engine import Engine\nfrom limelight.http.sse import frame\nimport litestar"),
        ("actors.scheduling.planner", "from limelight.step import Step\nfrom . import sequence"),
        ("actors.scheduler", "from limelight.actors.scheduling.planner import Planner\nimport time"),
        ("models.families.llama", "import torch\nfrom limelight.kernels.interface import Kernels"),
        ("engine", "from limelight.actor_system import ActorSystem"),
        ("actor_system", "from limelight.actors.scheduler import SchedulerActor"),
    ],
)
def test_an_import_along_the_table_is_fine(name: str, source: str) -> None:
    assert violations(name, source) == []


@pytest.mark.parametrize(
    "module", ["limelight", "limelight.cli", "limelight.http", "limelight.llm", "limelight.testing"]
)
def test_importing_it_loads_neither_torch_nor_transformers(module: str) -> None:
    script = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["limelight.http.settings", "limelight.cli.serve"])
def test_importing_it_loads_no_web_framework(module: str) -> None:
    script = f"import sys, {module}; print([name for name in ('litestar', 'uvicorn') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
