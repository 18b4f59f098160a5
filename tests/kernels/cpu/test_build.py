"""Tests of `limelight.kernels.cpu.build` on the kernels themselves."""

import platform
from pathlib import Path

import pytest

from limelight.kernels.cpu import build


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variants are for x86-64")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", list(build.VARIANT_FLAGS))
def test_every_variant_compiles_without_a_warning(variant: str, tmp_path: Path) -> None:
    """Those that do not run on this processor, too."""
    command = build.compiler()
    if command is None:
        pytest.skip("there is no C compiler")
    fractions: list[float] = []
    flags = (*build.flags_of(variant), "-Werror")
    build.compile_library(command, flags, tmp_path / "made.so", progress=fractions.append)
    assert (tmp_path / "made.so").read_bytes()[:4] == b"\x7fELF"
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_flags_and_sources_are_in_the_hash(tmp_path: Path) -> None:
    hashes = {build.source_hash(build.flags_of(variant)) for variant in build.VARIANT_FLAGS}
    assert len(hashes) == len(build.VARIANT_FLAGS)
    more = tmp_path / "more.c"
    more.write_text("int more;")
    assert build.source_hash((), [more]) not in {*hashes, build.source_hash(())}
