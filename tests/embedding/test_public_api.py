"""What programs build on: names, signatures and fields that change on purpose alone, and types that a strict checker
believes."""

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import limelight
from limelight import errors
from tools.public_api import FILE, public_api

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_public_interface_is_the_reviewed_one() -> None:
    written = FILE.read_text()
    now = public_api()
    changed = set(written.splitlines()) ^ set(now.splitlines())
    assert written == now, f"if {sorted(changed)} is meant: python tools/public_api.py, and a line in CHANGELOG.md"


def test_a_strict_type_checker_finds_nothing_in_a_program_without_casts() -> None:
    program = Path(__file__).parent / "consumer.py"
    assert not re.search(r"cast\(|type: ignore|\bAny\b", program.read_text())
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unreachable", str(program.relative_to(ROOT))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert (resources.files("limelight") / "py.typed").is_file()


def test_importing_the_names_loads_neither_torch_nor_a_web_framework() -> None:
    light = [name for name in limelight.__all__ if name not in ("create_app", "HttpSettings")]
    script = f"import sys\nfrom limelight import {', '.join(light)}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"torch", "transformers", "litestar", "uvicorn", "fastapi"} & set(done.stdout.split()) == set()


def test_every_error_that_a_caller_can_meet_is_of_one_tree() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(classes) > 15
    assert all(issubclass(kind, errors.LimelightError) for kind in classes)
