"""Compiles the C kernels into a shared library, one for each variant. The standard library is all that it needs: a
wheel is built with it too.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMMON_FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-Wall", "-Wextra", "-Werror=implicit-function-declaration",
)  # fmt: skip
VARIANT_FLAGS = {
    "avx512": (
        "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16", "-mfma", "-mf16c",
        "-DLIMELIGHT_AVX512",
    ),
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-DLIMELIGHT_AVX2"),
    "portable": (),
}  # fmt: skip
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT_SECONDS = 300.0
MAX_OUTPUT_CHARACTERS = 2000
Progress = Callable[[float], None]


def no_progress(_fraction: float) -> None:
    """Told by whom nobody listens to."""


class CompilationFailed(Exception):
    """The message says which command failed, and what it printed."""


def flags_of(variant: str) -> tuple[str, ...]:
    """What a variant is compiled with."""
    return (*COMMON_FLAGS, *VARIANT_FLAGS[variant])


def source_hash(flags: Sequence[str], sources: Iterable[Path] = ()) -> str:
    """Of the kernels' sources, and `sources` beside them, the flags and the kind of machine."""
    digest = hashlib.sha256(repr((flags, platform.machine())).encode())
    for path in [*sorted(SOURCES.iterdir()), *sources]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def packaged_name(variant: str) -> str:
    """File name of a variant in a wheel: it fits these sources alone."""
    return f"limelight-{variant}-{source_hash(flags_of(variant))}.so"


def compiler() -> list[str] | None:
    """The command of the C compiler: the variable CC, or what is installed; None if there is nothing.

    Raises:
        CompilationFailed: CC cannot be taken apart into words.
    """
    named = os.environ.get("CC", "")
    try:
        commands = [shlex.split(named), *([name] for name in COMPILERS)]
    except ValueError as error:
        raise CompilationFailed(f"CC is {named!r}, which is no command: {error}") from error
    return next((command for command in commands if command and shutil.which(command[0])), None)


def compiler_version(command: Sequence[str]) -> str:
    """What the compiler says that it is.

    Raises:
        CompilationFailed: it says nothing.
    """
    return _run([*command, "--version"])


def compiler_hash(command: Sequence[str]) -> str:
    """Of `compiler_version`.

    Raises:
        CompilationFailed: as there.
    """
    return hashlib.sha256(compiler_version(command).encode()).hexdigest()[:8]


def try_compiler(command: Sequence[str]) -> None:
    """Compile a library of one line over the headers that the kernels include.

    Raises:
        CompilationFailed: the compiler does not do it: headers may be missing.
        OSError: there is no room for temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="limelight-compiler-") as folder:
        source = Path(folder) / "tried.c"
        headers = sorted({line for path in SOURCES.iterdir() for line in _system_headers(path)})
        source.write_text("".join(f"#include <{header}>\n" for header in headers) + "int tried(void) { return 0; }\n")
        _run([*command, *COMMON_FLAGS, "-shared", str(source), "-o", str(Path(folder) / "tried.so"), "-lm"])


def compile_library(
    command: Sequence[str],
    flags: Sequence[str],
    target: Path,
    *,
    sources: Sequence[Path] | None = None,
    progress: Progress = no_progress,
) -> None:
    """Compile into `target`, each file in a process of its own.

    Args:
        sources: files to compile instead of all kernels.
        progress: told the fraction that is done.

    Raises:
        CompilationFailed: the compiler does not accept something, or is not done in five minutes.
        OSError: the folder of `target` cannot be written to.
    """
    files = sorted(SOURCES.glob("*.c")) if sources is None else sources
    with tempfile.TemporaryDirectory(prefix="objects-", dir=target.parent) as folder:
        objects = [Path(folder) / f"{path.stem}.o" for path in files]
        commands = [
            [*command, *flags, f"-I{SOURCES}", "-c", str(source), "-o", str(made)]
            for source, made in zip(files, objects, strict=True)
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            running = [threads.submit(partial(_run, command)) for command in commands]
            try:
                for num_done, done in enumerate(as_completed(running), 1):
                    done.result()
                    progress(num_done / (len(running) + 1))
            finally:
                threads.shutdown(wait=True, cancel_futures=True)
        _run([*command, *flags, "-shared", *map(str, objects), "-o", str(target), "-lm"])
        progress(1.0)


def _system_headers(path: Path) -> list[str]:
    """What a source includes whatever the processor is."""
    return re.findall(r"^#include <(?!immintrin)([a-z_/]+\.h)>", path.read_text(), re.MULTILINE)


def _run(command: Sequence[str]) -> str:
    """What the command prints on its standard output."""
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the user or the system names
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompilationFailed(f"{shlex.join(command)} was not done in {TIMEOUT_SECONDS:.0f} s") from None
    except OSError as error:
        raise CompilationFailed(f"{shlex.join(command)} cannot be run: {error}") from error
    if done.returncode:
        printed = (done.stderr or done.stdout).strip()[:MAX_OUTPUT_CHARACTERS]
        raise CompilationFailed(f"{shlex.join(command)} ended with code {done.returncode}:\n{printed}")
    return done.stdout
