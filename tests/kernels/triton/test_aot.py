"""Every kernel compiled for GPUs that aren't there: in a process of its own, without the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from limelight.kernels.triton.build import SHARED_MEMORY_BYTES

COMPILE = """
import json, sys
import msgspec
from limelight.kernels.triton.aot import serving_builds
from limelight.kernels.triton.build import compile_build

for build in serving_builds(int(sys.argv[1])):
    if build.name.endswith(sys.argv[2]) and sys.argv[3] not in build.name:
        taken = compile_build(build, int(sys.argv[1]))
        print(json.dumps([build.name, build.may_spill, msgspec.to_builtins(taken)]))
"""


def check(capability: int, end_of_name: str, left_out: str, cache: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(capability), end_of_name, left_out],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines
    for name, may_spill, taken in lines:
        assert taken["shared_bytes"] <= SHARED_MEMORY_BYTES[capability], name
        assert may_spill or taken["spills"] == taken["stack_bytes"] == 0, name


@pytest.mark.parametrize("capability", SHARED_MEMORY_BYTES)
@pytest.mark.parametrize("end_of_name", ["Llama 3 8B", "128,256 tokens"])
def test_what_a_decode_launches_spills_nothing_and_fits(capability: int, end_of_name: str, tmp_path: Path) -> None:
    check(capability, end_of_name, "mixed", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", SHARED_MEMORY_BYTES)
def test_all_kernels_fit(capability: int, tmp_path: Path) -> None:
    check(capability, "", "nothing is left out", tmp_path)
