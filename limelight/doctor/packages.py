"""The versions that are installed against those that Limelight's own metadata asks for. Imports none of them."""

import ast
import importlib.util
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from limelight.doctor.finding import Finding, State

OPTIONAL = {"triton": "the kernels of NVIDIA GPUs", "plot": "pictures of `limelight bench` as PNG"}
"""Extras that add to what runs, and what for; the others are for tests."""


class TorchBuild(msgspec.Struct, frozen=True):
    """torch as it is installed; `cuda` and `rocm` are the versions that it was built for, None for a build without."""

    version: str
    cuda: str | None = None
    rocm: str | None = None

    @property
    def title(self) -> str:
        """For people: "2.13.0 (CUDA 13.0)"."""
        built_for = f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.rocm}" if self.rocm else "CPU"
        return f"{self.version} ({built_for})"


def installed_version(name: str) -> str | None:
    """Of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def asked_for() -> list[str] | None:
    """What the installed metadata of Limelight asks for; None where it runs without having been installed."""
    try:
        return metadata.requires("limelight") or []
    except metadata.PackageNotFoundError:
        return None


def package_findings(
    asked: Sequence[str] | None, installed: Callable[[str], str | None] = installed_version
) -> list[Finding]:
    """One finding for everything that is needed, and one for each optional extra.

    Args:
        asked: requirements as metadata has them; None: unknown.
    """
    if asked is None:
        return [
            Finding(
                "packages",
                State.NOTE,
                "Limelight is not installed as a package, so nothing says which versions it needs",
                "install it: pip install -e . in its folder",
            )
        ]
    requirements = [Requirement(line) for line in asked]
    needed = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = [told for one in needed if (told := _mismatch(one.name, str(one.specifier), installed(one.name)))]
    if wrong:
        first = Finding("packages", State.PROBLEM, "; ".join(wrong), "install Limelight again: pip install -e .")
    else:
        first = Finding("packages", State.OK, f"all {len(needed)} that are needed, in versions that do")
    return [first, *(_extra(name, requirements, installed) for name in OPTIONAL)]


def _extra(name: str, requirements: Sequence[Requirement], installed: Callable[[str], str | None]) -> Finding:
    of_extra = [
        one
        for one in requirements
        if one.marker is not None and not one.marker.evaluate({"extra": ""}) and one.marker.evaluate({"extra": name})
    ]
    wrong = [told for one in of_extra if (told := _mismatch(one.name, str(one.specifier), installed(one.name)))]
    subject = f"extra {name}"
    if not wrong:
        versions = ", ".join(f"{one.name} {installed(one.name)}" for one in of_extra)
        return Finding(subject, State.OK, f"{versions or 'nothing is needed here'}: {OPTIONAL[name]}")
    return Finding(
        subject, State.NOTE, f"{'; '.join(wrong)}: {OPTIONAL[name]}", f"if you want them: pip install -e '.[{name}]'"
    )


def _mismatch(name: str, wanted: str, found: str | None) -> str | None:
    if found is None:
        return f"{name} is not installed"
    if SpecifierSet(wanted).contains(found, prereleases=True):
        return None
    return f"{name} is {found}, and {wanted} is needed"


def torch_build() -> TorchBuild | None:
    """The version of torch and what it was built for, read from its files; None if it is not installed."""
    version = installed_version("torch")
    spec = importlib.util.find_spec("torch")
    if version is None or spec is None or spec.origin is None:
        return None
    try:
        return read_build(version, (Path(spec.origin).parent / "version.py").read_text())
    except (OSError, SyntaxError):
        return TorchBuild(version)


def read_build(version: str, source: str) -> TorchBuild:
    """The build that torch's `version.py` tells of.

    Raises:
        SyntaxError: it is no Python.
    """
    values: dict[str, object] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[*targets], value=ast.Constant(value=value)):
                values |= {target.id: value for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                values[name] = value
    cuda, rocm = values.get("cuda"), values.get("hip")
    return TorchBuild(
        version, cuda=cuda if isinstance(cuda, str) else None, rocm=rocm if isinstance(rocm, str) else None
    )
