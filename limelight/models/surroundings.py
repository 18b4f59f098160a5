"""What a bundle says of programs and machine: what tokens can depend on, beside model and settings. Blocking."""

import hashlib
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from limelight.kernels.cpu.features import NEEDED_FLAGS, processor_flags

LIBRARIES = ("limelight", "torch", "triton", "transformers", "tokenizers", "llguidance", "numpy", "msgspec")
MODEL_FILES = (".safetensors", ".json", ".gguf")
NUM_SAMPLES = 64
SAMPLE_BYTES = 4096
HEADER_BYTES = 256 * 1024
"""Of each file that are read whole: of safetensors and GGUF files their header, or its beginning."""


def versions() -> dict[str, str]:
    """Of this program, of Python, and of the libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str]:
    """Processor, its features that kernels ask for, and the system."""
    wanted = sorted({flag for flags in NEEDED_FLAGS.values() for flag in flags} & processor_flags())
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor_name(),
        "features": " ".join(wanted),
    }


def files_digest(path: Path) -> str:
    """SHA-256 of what tells one model from another, without reading all of it: names and sizes of its files, their
    first bytes, and samples spread evenly over the rest. "" if they cannot be read.

    Args:
        path: a model's folder, or its one file.
    """
    digest = hashlib.sha256()
    try:
        for file in _files(path):
            size = file.stat().st_size
            digest.update(f"{file.name}\n{size}\n".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(HEADER_BYTES))
                rest = size - HEADER_BYTES
                for number in range(NUM_SAMPLES if rest > 0 else 0):
                    stream.seek(HEADER_BYTES + rest * number // NUM_SAMPLES)
                    digest.update(stream.read(SAMPLE_BYTES))
    except OSError:
        return ""
    return f"sha256-sampled:{digest.hexdigest()}"


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in MODEL_FILES and file.is_file())


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} threads"
