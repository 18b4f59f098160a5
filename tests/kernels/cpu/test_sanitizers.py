"""Runs the tests of the kernels once more, with kernels that gcc's sanitizers watch: a load or store outside of what
was allocated, undefined behaviour, or two threads that meet at one address end the run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from limelight.kernels.cpu import build

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
TESTS = sorted(
    path
    for path in FOLDER.glob("test_*.py")
    if path.stem not in {"test_build", "test_features", "test_loading", "test_sanitizers", "test_wheel"}
)
COMPILE = """
from tests.kernels.cpu import libraries
for sources in (None, libraries.CHECKSUM):
    libraries.compiled(libraries.VARIANTS[0], sources)
"""
OPTIONS = {
    # The interpreter leaves memory behind when it ends.
    "ASAN_OPTIONS": "detect_leaks=0",
    # Python and its libraries are not watched: what they do between themselves looks like races.
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 halt_on_error=1",
}


def runtime(name: str) -> str | None:
    """Path of a sanitizer's library, which has to be loaded before everything else."""
    command = build.compiler()
    if command is None:
        return None
    found = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = Path(found.stdout.strip())
    return str(path.resolve()) if path.is_absolute() else None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("sanitizer", "name"), [("address,undefined", "libasan.so"), ("thread", "libtsan.so")])
def test_the_kernels_keep_to_their_memory_and_to_their_rows(sanitizer: str, name: str) -> None:
    loaded = runtime(name)
    if loaded is None:
        pytest.skip(f"the compiler has no {name}")
    # The thread sanitizer of older compilers wants memory where it has always been.
    fixed = ["setarch", "--addr-no-randomize"] if shutil.which("setarch") else []
    environment = {**os.environ, "LIMELIGHT_TEST_SANITIZE": sanitizer}
    # The compiler must not run under the sanitizer.
    subprocess.run([sys.executable, "-c", COMPILE], cwd=ROOT, env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--capture=sys", "--timeout=0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*fixed, *command, "-m", "not slow", *map(str, TESTS)],
        cwd=ROOT,
        env={**environment, **OPTIONS, "LD_PRELOAD": loaded},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-10_000:]
    assert "passed" in done.stdout
