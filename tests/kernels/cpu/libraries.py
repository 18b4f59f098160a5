"""The libraries that the tests run, compiled where they are not in the cache of the user.

`LIMELIGHT_TEST_SANITIZE` is what gcc's `-fsanitize` gets, for runs inside `sanitized.py`.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from limelight.kernels.cpu import build
from limelight.kernels.cpu.cache import Cache, default_folder
from limelight.kernels.cpu.features import processor_flags, runnable_variants
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.loading import compile_into

EMULATED = "avx512-emulated"
EMULATED_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-DLIMELIGHT_AVX512", "-DLIMELIGHT_EMULATE")
SANITIZE = os.environ.get("LIMELIGHT_TEST_SANITIZE", "")
VARIANTS = runnable_variants()
if {"avx2", "fma", "f16c"} <= processor_flags() and "avx512" not in VARIANTS:
    VARIANTS.append(EMULATED)


def why_not(name: str) -> str | None:
    """Why the library cannot be had, or None."""
    if build.compiler() is None:
        return "there is no C compiler"
    if name == EMULATED and not _has_header("simde/x86/avx512.h"):
        return "emulating AVX-512 needs SIMDe (package libsimde-dev)"
    return None


def load(name: str, sources: Sequence[Path] = ()) -> Library:
    """The variant `name`, and `sources` beside it; the emulated one says "avx512" to whoever asks for its variant."""
    flags = (*build.COMMON_FLAGS, *EMULATED_FLAGS) if name == EMULATED else build.flags_of(name)
    if SANITIZE:
        flags = (*flags, f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-g", "-O1")
    command = build.compiler()
    assert command is not None
    cache = Cache(default_folder())
    key = f"test-{name}-{build.source_hash(flags, sources)}-{build.compiler_hash(command)}"
    path = next(cache.find(key), None) or compile_into(cache, key, command, flags, sources=sources)
    return Library(name.partition("-")[0], path)


def _has_header(header: str) -> bool:
    command = build.compiler()
    assert command is not None
    source = f"#include <{header}>"
    checked = [*command, "-fsyntax-only", "-w", *EMULATED_FLAGS, "-xc", "-"]
    return subprocess.run(checked, input=source, text=True, capture_output=True, check=False).returncode == 0
