"""The libraries that the tests run, compiled where they are not in the cache of the user.

`LIMELIGHT_TEST_SANITIZE` is what `-fsanitize` gets, for the runs that `test_sanitizers.py` starts.
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

CHECKSUM = [build.SOURCES / "pool.c", build.SOURCES / "program.c", Path(__file__).with_name("checksum.c")]
"""Sources of programs whose units depend on each other (`test_pool.py`)."""
EMULATED = "avx512-emulated"
# Not optimised: the compiler would take minutes for what the emulation unfolds to.
EMULATED_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-DLIMELIGHT_AVX512", "-DLIMELIGHT_EMULATE", "-Wno-psabi", "-O0")
SANITIZE = os.environ.get("LIMELIGHT_TEST_SANITIZE", "")
VARIANTS = runnable_variants()
if SANITIZE:
    VARIANTS = VARIANTS[:1]
elif {"avx2", "fma", "f16c"} <= processor_flags() and "avx512" not in VARIANTS:
    VARIANTS.append(EMULATED)


def why_not(name: str) -> str | None:
    """Why the library cannot be had, or None."""
    if build.compiler() is None:
        return "there is no C compiler"
    if name == EMULATED and not _has_header("simde/x86/avx512.h"):
        return "emulating AVX-512 needs SIMDe (package libsimde-dev)"
    return None


def load(name: str, sources: Sequence[Path] | None = None) -> Library:
    """The variant `name` of all kernels, or of `sources`; the emulated one says that its variant is "avx512"."""
    return Library(name.partition("-")[0], compiled(name, sources))


def compiled(name: str, sources: Sequence[Path] | None = None) -> Path:
    """Where the library lies that `load` loads."""
    flags = (*build.COMMON_FLAGS, *EMULATED_FLAGS) if name == EMULATED else build.flags_of(name)
    if SANITIZE:
        flags = (*flags, f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-g", "-O1")
    command = build.compiler()
    assert command is not None
    cache = Cache(default_folder())
    key = f"test-{name}-{build.source_hash(flags, sources or ())}-{build.compiler_hash(command)}"
    return next(cache.find(key), None) or compile_into(cache, key, command, flags, sources=sources)


def _has_header(header: str) -> bool:
    command = build.compiler()
    assert command is not None
    source = f"#include <{header}>"
    checked = [*command, "-fsyntax-only", "-w", *EMULATED_FLAGS, "-xc", "-"]
    return subprocess.run(checked, input=source, text=True, capture_output=True, check=False).returncode == 0
