"""Launches as a GPU gets them, up to the compiler: in a process of its own, without the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_nothing_is_compiled_in_mid_service() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.launched"],
        env=environment,
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    before, later = json.loads(done.stdout)
    assert {"attend_kernel", "draw_kernel", "plan_kernel", "prepare_kernel"} <= set(before)
    assert later == []
