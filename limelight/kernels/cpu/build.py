"""Compiles the C kernels into a shared library: one for each variant, cached under a hash of what went in."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMMON_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Werror=implicit-function-declaration")
VARIANT_FLAGS = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-DLIMELIGHT_AVX2"),
    "avx512": (
        "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16", "-mfma", "-mf16c",
        "-DLIMELIGHT_AVX512",
    ),
}  # fmt: skip


def build(variant: str, folder: Path) -> Path:
    """The library of `variant` in `folder`, compiled unless it is there."""
    sources = sorted(SOURCES.glob("*.c"))
    flags = (*COMMON_FLAGS, *VARIANT_FLAGS[variant])
    digest = hashlib.sha256(repr(flags).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    target = folder / f"limelight-{variant}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workplace:
            made = Path(workplace) / target.name
            subprocess.run([os.environ.get("CC", "cc"), *flags, *map(str, sources), "-o", str(made), "-lm"], check=True)
            made.replace(target)
    return target
