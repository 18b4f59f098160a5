"""Finds the compiled kernels for this processor: in the package, in the user's cache, or by compiling them once."""

import hashlib
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from limelight.errors import ConfigError
from limelight.kernels.cpu import build
from limelight.kernels.cpu.cache import Cache, CacheUnusable, default_folder
from limelight.kernels.cpu.features import NEEDED_FLAGS, processor_flags, runnable_variants
from limelight.kernels.cpu.library import Library, UnmadeLibrary
from limelight.progress import Report

logger = logging.getLogger(__name__)
STAGE = "compiling kernels for this processor (once)"
COMPILED = Path(__file__).parent / "compiled"
"""Libraries of a wheel."""
NO_COMPILER = f"there is no C compiler: neither what CC names nor {', '.join(build.COMPILERS)}"
WITHOUT = (
    "There are no compiled kernels for this CPU: models run on PyTorch's own operations, several times slower. Install "
    "gcc (for example: apt-get install gcc libc6-dev), or Limelight from a wheel for this platform, which has them "
    "compiled. Why: %s"
)


def load_library(variant: str = "auto", report: Report = lambda _stage, _fraction: None) -> Library | None:
    """The kernels of `variant`, or of the fastest variant that this processor runs and that can be had.

    Returns:
        None if there are none, and no compiler makes them; a warning says why.

    Raises:
        ConfigError: there is no such variant, or the processor does not run it.
    """
    if sys.platform != "linux":
        logger.warning("The kernels for the CPU run on Linux alone: models run on PyTorch's own operations.")
        return None
    problems: list[str] = []
    for candidate in _candidates(variant):
        library = _load_variant(candidate, report, problems)
        if library is not None:
            return library
    logger.warning(WITHOUT, "; ".join(dict.fromkeys(problems)))
    return None


def expected_library(variant: str = "auto") -> Library | None:
    """What `load_library` would give, without compiling it.

    Raises:
        ConfigError: as `load_library`.
    """
    candidates = _candidates(variant) if sys.platform == "linux" else []
    for candidate in candidates:
        library = _found(candidate)
        if library is not None:
            return library
    try:
        command = build.compiler()
        if candidates and command is not None and build.compiler_hash(command):
            return UnmadeLibrary(candidates[0])
    except build.CompilationFailed:
        pass
    return load_library(variant)  # which says why there are none


class Outlook(NamedTuple):
    """Where `load_library` would get its kernels.

    Attributes:
        variant: None: there are none, and models run on PyTorch's own operations.
        compiled: they are there already; else the first start compiles them.
        problem: why there are none.
    """

    variant: str | None
    compiled: bool = False
    problem: str | None = None


def outlook(variant: str = "auto") -> Outlook:
    """What `load_library` would do, without compiling kernels; the compiler is tried on a file of one line.

    Raises:
        ConfigError: as `load_library`.
    """
    if sys.platform != "linux":
        return Outlook(None, problem="the kernels for the CPU run on Linux alone")
    candidates = _candidates(variant)
    problem = NO_COMPILER
    try:
        command = build.compiler()
        key = None if command is None else _compiler_key(command)
        if command is not None:
            build.try_compiler(command)
    except (build.CompilationFailed, OSError) as error:
        command, key, problem = None, None, str(error)
    for candidate in candidates:
        if (COMPILED / build.packaged_name(candidate)).exists() or _kept(candidate, key):
            return Outlook(candidate, compiled=True)
        if command is not None:
            return Outlook(candidate)
    return Outlook(None, problem=problem)


def compile_into(
    cache: Cache,
    name: str,
    command: Sequence[str],
    flags: Sequence[str],
    *,
    sources: Sequence[Path] | None = None,
    progress: build.Progress = build.no_progress,
) -> Path:
    """Compile a library and store it under `name`; see `compile_library`.

    Raises:
        CompilationFailed: the compiler does not accept something.
        OSError: the disk is full, or the like.
    """
    progress(0.0)
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache.folder) as folder:
        made = Path(folder) / "made.so"
        build.compile_library(command, flags, made, sources=sources, progress=progress)
        return cache.store(made, name)


def _candidates(variant: str) -> list[str]:
    runnable = runnable_variants()
    if variant == "auto":
        return runnable
    if variant not in NEEDED_FLAGS:
        raise ConfigError(f"there are no kernels {variant!r}; there are: auto, {', '.join(NEEDED_FLAGS)}")
    if variant not in runnable:
        missing = ", ".join(sorted(NEEDED_FLAGS[variant] - processor_flags()))
        raise ConfigError(
            f"the kernels {variant!r} do not run on this processor, which lacks {missing}; "
            f"it runs {', '.join(runnable)}: choose one of them, or 'auto'"
        )
    return [variant]


def _load(variant: str, path: Path, problems: list[str]) -> Library | None:
    try:
        return Library(variant, path)
    except OSError as error:
        problems.append(str(error))
        return None


def _found(variant: str) -> Library | None:
    """From the package or the cache."""
    packaged = COMPILED / build.packaged_name(variant)
    found = _load(variant, packaged, []) if packaged.exists() else None
    if found is not None:
        return found
    try:
        paths = list(Cache(default_folder()).find(_stem(variant)))
    except (CacheUnusable, RuntimeError):
        return None
    return next((library for path in paths if (library := _load(variant, path, [])) is not None), None)


def _kept(variant: str, compiler_key: str | None) -> bool:
    """Whether the cache has kernels that this compiler made, or any one if there is none."""
    name = _stem(variant) if compiler_key is None else f"{_stem(variant)}-{compiler_key}"
    try:
        return any(True for _ in Cache(default_folder()).find(name))
    except (CacheUnusable, RuntimeError):
        return False


def _load_variant(variant: str, report: Report, problems: list[str]) -> Library | None:
    packaged = COMPILED / build.packaged_name(variant)
    if packaged.exists():
        library = _load(variant, packaged, problems)
        if library is not None:
            return library
    try:
        cache = Cache(default_folder())
    except (CacheUnusable, RuntimeError) as error:  # RuntimeError: there is no home
        logger.warning("Compiled kernels cannot be kept, so each start compiles them: %s.", error)
        try:
            with tempfile.TemporaryDirectory(prefix="limelight-kernels-") as private:
                return _from_cache(variant, Cache(Path(private)), report, problems)
        except OSError as no_folder:
            problems.append(str(no_folder))
            return None
    return _from_cache(variant, cache, report, problems)


def _from_cache(variant: str, cache: Cache, report: Report, problems: list[str]) -> Library | None:
    for path in _made(variant, cache, report, problems):
        library = _load(variant, path, problems)
        if library is not None:
            return library
        cache.remove(path)
    return None


def _made(variant: str, cache: Cache, report: Report, problems: list[str]) -> Iterator[Path]:
    """Paths to try: what the cache has of this compiler, what it makes now, and what any compiler made."""
    name = _stem(variant)
    try:
        command = build.compiler()
        if command is None:
            problems.append(NO_COMPILER)
        else:
            made_with = f"{name}-{_compiler_key(command)}"
            yield from cache.find(made_with)
            yield compile_into(cache, made_with, command, build.flags_of(variant), progress=partial(report, STAGE))
    except (build.CompilationFailed, OSError) as error:
        problems.append(str(error))
    yield from cache.find(name)


def _stem(variant: str) -> str:
    return Path(build.packaged_name(variant)).stem


def _compiler_key(command: Sequence[str]) -> str:
    """Of what the compiler is, and of the words behind its name, which may be flags."""
    return hashlib.sha256(f"{build.compiler_hash(command)} {command[1:]}".encode()).hexdigest()[:8]
