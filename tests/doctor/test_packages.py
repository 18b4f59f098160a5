"""Versions against what the metadata asks for."""

import sys

import pytest

from limelight.doctor.finding import State
from limelight.doctor.packages import TorchBuild, asked_for, package_findings, read_build, torch_build

ASKED = [
    "anyio>=4.14.2",
    "torch>=2.11",
    "winloop>=1; sys_platform == 'nowhere'",
    "triton>=3.6; extra == 'triton'",
    "resvg-py>=0.4; extra == 'plot'",
    "pytest>=8; extra == 'test'",
]
GOOD = {"anyio": "4.15.0", "torch": "2.13.0+cpu", "triton": "3.6.0", "resvg-py": "0.4"}


def findings(**changes: str | None) -> list[tuple[State, str, str | None]]:
    installed = {**GOOD, **{name.replace("_", "-"): version for name, version in changes.items()}}
    return [(found.state, found.text, found.advice) for found in package_findings(ASKED, installed.get)]


def test_what_does_is_counted_and_markers_count() -> None:
    needed, triton, plot = findings()
    assert needed == (State.OK, "all 2 that are needed, in versions that do", None)
    assert triton[:2] == (State.OK, "triton 3.6.0: the kernels of NVIDIA GPUs")
    assert plot[0] is State.OK


def test_what_is_missing_or_too_old_is_a_problem() -> None:
    state, text, advice = findings(anyio=None, torch="2.9.1")[0]
    assert state is State.PROBLEM
    assert text == "anyio is not installed; torch is 2.9.1, and >=2.11 is needed"
    assert advice is not None


def test_a_pre_release_of_a_later_version_does() -> None:
    assert findings(torch="2.14.0.dev20261201")[0][0] is State.OK


def test_an_optional_package_is_worth_a_note() -> None:
    state, text, advice = findings(triton=None)[1]
    assert state is State.NOTE
    assert text == "triton is not installed: the kernels of NVIDIA GPUs"
    assert advice == "if you want them: pip install -e '.[triton]'"


def test_without_metadata_it_says_so() -> None:
    (found,) = package_findings(None)
    assert found.state is State.NOTE
    assert "not installed as a package" in found.text


def test_this_installation_can_be_asked() -> None:
    assert package_findings(asked_for())[0].subject == "packages"


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "2.13.0 (CUDA 13.0)"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.1'", "2.13.0 (ROCm 7.1)"),
        ("cuda = None\nhip = None", "2.13.0 (CPU)"),
        ("", "2.13.0 (CPU)"),
        ("cuda = made_up()", "2.13.0 (CPU)"),
    ],
)
def test_the_build_of_torch_is_read_from_its_file(source: str, title: str) -> None:
    assert read_build("2.13.0", source).title == title


def test_torch_is_found_without_being_imported() -> None:
    before = "torch" in sys.modules
    assert isinstance(torch_build(), TorchBuild)
    assert ("torch" in sys.modules) == before
