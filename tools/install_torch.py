"""Installs torch in the wanted build, CPU or CUDA, with the version that constraints.txt pins.

pip decides by index and platform which build it takes, so this asks it first (a dry run). Where pip's choice is not
the wanted build, `uv` installs torch: it knows where the other builds are. Run it with the environment's own Python:

    .venv/bin/python tools/install_torch.py cpu|cuda
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
CUDA_PREFIXES = ("nvidia-", "cuda-")
SIZES = {"cpu": "about 200 MB", "cuda": "several gigabytes"}


def pinned(package: str, constraints: Iterable[str]) -> str:
    """The requirement `package==version` from lines of a constraints file.

    Raises:
        SystemExit: the file does not pin it.
    """
    for line in constraints:
        if line.partition("==")[0].strip().lower() == package:
            return line.strip()
    raise SystemExit(f"constraints.txt does not pin {package}")


def build_of(package_names: Iterable[str]) -> str:
    """Which build of torch comes with these packages: only the CUDA one brings NVIDIA's libraries along."""
    return "cuda" if any(name.lower().startswith(CUDA_PREFIXES) for name in package_names) else "cpu"


def install_command(wanted: str, offered: str, requirement: str, platform: str) -> list[str]:
    """The arguments after `python -m` that install `requirement` as the `wanted` build.

    Args:
        wanted: "cpu" or "cuda".
        offered: the build that plain pip would take.
        requirement: `torch==version`.
        platform: `sys.platform`; there are no CUDA builds for macOS.

    Raises:
        SystemExit: the wanted build does not exist here.
    """
    if wanted == "cuda" and platform == "darwin":
        raise SystemExit("TORCH=cuda: there is no CUDA build of torch for macOS; use TORCH=cpu")
    if wanted == offered:
        # The CPU build is small, and its few dependencies come with Limelight's own; the CUDA build is worth watching.
        alone = ["-qq", "--no-deps"] if wanted == "cpu" else []
        return ["pip", "install", "--constraint", str(CONSTRAINTS), *alone, requirement]
    backend = "cpu" if wanted == "cpu" else "auto"
    return ["uv", "pip", "install", "--python", sys.executable, "--torch-backend", backend, requirement]


def offered_build(requirement: str) -> str:
    """The build that plain pip would install, by its own dry run over the whole dependency tree."""
    report = _python("-m", "pip", "install", "--dry-run", "--ignore-installed", "-qq", "--report", "-", requirement)
    return build_of(entry["metadata"]["name"] for entry in json.loads(report)["install"])


def installed_build(requirement: str) -> str | None:
    """The build that is installed in exactly the pinned version, or None."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    if version.partition("+")[0] != requirement.partition("==")[2]:
        return None
    return _python("-c", "import torch; print('cuda' if torch.version.cuda else 'cpu')").strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Installs torch unless the wanted build is already there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", choices=("cpu", "cuda"))
    wanted = parser.parse_args(arguments).build
    lines = CONSTRAINTS.read_text().splitlines()
    requirement = pinned("torch", lines)
    if installed_build(requirement) == wanted:
        print(f"{requirement} ({wanted}) is installed")
        return
    command = install_command(wanted, offered_build(requirement), requirement, sys.platform)
    print(f"installing {requirement} ({wanted}, {SIZES[wanted]})", flush=True)
    if command[0] == "uv":
        _run("pip", "install", "-qq", pinned("uv", lines))
        if installed_build(requirement) is not None:
            command.append("--reinstall-package=torch")
    _run(*command)


def _run(*module_and_arguments: str) -> None:
    """Runs `python -m ...`, its output shown; ends this program with its exit code if it fails."""
    code = subprocess.run([sys.executable, "-m", *module_and_arguments], check=False).returncode
    if code:
        raise SystemExit(code)


def _python(*arguments: str) -> str:
    """What `python ...` prints; ends this program with its exit code if it fails."""
    done = subprocess.run([sys.executable, *arguments], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


if __name__ == "__main__":
    main()
