"""Who else is on a GPU, from what the driver's tool prints, or from nothing."""

import os
import subprocess
from collections.abc import Sequence

import pytest

from limelight.models.gpu_tenants import others_note

UUID = "GPU-1"
PRINTED = f"""GPU-1, 4711, /usr/bin/python3, 2048
GPU-1, {os.getpid()}, python, 9000
GPU-2, 12, other, 77
GPU-1, 13, Xorg, [N/A]
GPU-1, 14, a,b, 4096
not a line
"""


def test_other_programs_of_the_gpu_are_named_the_largest_first() -> None:
    note = others_note(7 * 2**30, UUID, lambda _command: PRINTED)
    assert note == "7.00 GiB: a,b (pid 14) 4.00 GiB, python3 (pid 4711) 2.00 GiB, Xorg (pid 13)"


def test_many_are_counted() -> None:
    printed = "\n".join(f"GPU-1, {pid}, p{pid}, {pid}" for pid in range(1_000_001, 1_000_008))
    assert others_note(2**30, UUID, lambda _command: printed).endswith("p1000004 (pid 1000004) 976.57 GiB and 3 more")


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 5)])
def test_a_tool_that_is_missing_or_hangs_costs_the_names_alone(error: Exception) -> None:
    def fails(_command: Sequence[str]) -> str:
        raise error

    assert others_note(2**30, UUID, fails) == "1.00 GiB"
    assert others_note(2**30, None) == "1.00 GiB"
