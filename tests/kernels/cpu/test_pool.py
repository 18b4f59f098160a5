"""Tests of `csrc/pool.c`: every unit runs once, and after all units of the operation before."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.recorder import Program
from limelight.kernels.cpu.threads import ThreadPool
from tests.kernels.cpu import libraries

CHECKSUM = Function("record_checksum", "pppppll")
ROOT = Path(__file__).resolve().parents[3]


class Checksums:
    """A program of `num_operations` operations whose numbers of units are set before each run."""

    def __init__(self, library: Library, num_operations: int, largest: int, scratch_bytes: int = 0) -> None:
        self.units = np.zeros(num_operations, np.int32)
        self.counters = np.zeros((num_operations, largest), np.uint64)
        self.scratch_bytes = scratch_bytes
        self.program = Program(library, 0)
        for index in range(num_operations):
            before = self.units[index - 1 :].ctypes.data if index else None
            failed = library.call(
                CHECKSUM,
                self.program.handle,
                self.units[index:].ctypes.data,
                before,
                self.counters[index - 1].ctypes.data if index else None,
                self.counters[index].ctypes.data,
                index,
                scratch_bytes,
            )
            assert not failed

    def run(self, units: Sequence[int], pool: ThreadPool | None) -> NDArray[np.uint64]:
        self.units[:] = units
        self.program.run(pool)
        return self.counters.copy()


@pytest.fixture(scope="module")
def checks() -> Library:
    """The pool, programs, and the operation in `checksum.c`."""
    reason = libraries.why_not(libraries.VARIANTS[0])
    if reason:
        pytest.skip(reason)
    return libraries.load(libraries.VARIANTS[0], libraries.CHECKSUM)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
@settings(max_examples=100)
@given(
    runs=st.lists(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 17, 200]), min_size=6, max_size=6), max_size=20),
    scratch_bytes=st.sampled_from([0, 1, 700]),
)
def test_threads_compute_what_one_computes(
    checks: Library, num_threads: int, runs: list[list[int]], scratch_bytes: int
) -> None:
    alone, together = (Checksums(checks, 6, 200, scratch_bytes) for _ in range(2))
    pool = ThreadPool(checks, num_threads)
    for units in runs:
        np.testing.assert_array_equal(together.run(units, pool), alone.run(units, None))
    pool.close()


def test_many_short_runs_of_several_programs_on_one_pool(checks: Library) -> None:
    generator = np.random.default_rng(0)
    pool = ThreadPool(checks, 4)
    pairs = [tuple(Checksums(checks, 20, 32, scratch_bytes) for _ in range(2)) for scratch_bytes in (0, 10, 5000, 100)]
    for _ in range(500):
        alone, together = pairs[generator.integers(len(pairs))]
        units = generator.integers(0, 33, 20) * generator.integers(0, 2, 20)
        np.testing.assert_array_equal(together.run(units, pool), alone.run(units, None))
    pool.close()


def test_pools_of_different_callers_do_not_meet(checks: Library) -> None:
    wrong: list[int] = []

    def call_often(seed: int) -> None:
        generator = np.random.default_rng(seed)
        alone, together = (Checksums(checks, 10, 64, 64) for _ in range(2))
        pool = ThreadPool(checks, 3)
        for run in range(100):
            units = generator.integers(0, 65, 10)
            if not np.array_equal(together.run(units, pool), alone.run(units, None)):
                wrong.append(run)
        pool.close()

    callers = [threading.Thread(target=call_often, args=(seed,)) for seed in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_more_units_than_fit_into_16_bits(checks: Library) -> None:
    alone, together = (Checksums(checks, 1, 200_000) for _ in range(2))
    pool = ThreadPool(checks, 2)
    np.testing.assert_array_equal(together.run([200_000], pool), alone.run([200_000], None))
    pool.close()


def test_one_pool_serves_runs_from_different_threads_one_after_the_other(checks: Library) -> None:
    alone, together = (Checksums(checks, 5, 40) for _ in range(2))
    pool = ThreadPool(checks, 3)
    for _ in range(20):
        caller = threading.Thread(target=together.run, args=([40, 3, 0, 1, 40], pool))
        caller.start()
        caller.join()
        alone.run([40, 3, 0, 1, 40], None)
    np.testing.assert_array_equal(together.counters, alone.counters)
    pool.close()


def test_a_profile_names_every_operation_and_computes_what_a_run_does(checks: Library) -> None:
    alone, together = (Checksums(checks, 4, 9) for _ in range(2))
    pool = ThreadPool(checks, 2)
    together.units[:] = [9, 0, 9, 1]
    profile = together.program.profile(pool)
    np.testing.assert_array_equal(together.counters, alone.run([9, 0, 9, 1], None))
    assert [name for name, _ in profile] == ["checksum"] * 4
    assert all(0 < seconds < 10 for _, seconds in profile)
    pool.close()


def test_threads_are_named_and_leave_signals_to_python(checks: Library) -> None:
    pool = ThreadPool(checks, 3)
    threads = [task for task in Path("/proc/self/task").iterdir() if _name(task) == "limelight-cpu"]
    assert len(threads) >= 2
    blocked = [_status(task)["SigBlk"] for task in threads]
    assert all(int(mask, 16) & (1 << 1) for mask in blocked)  # SIGINT
    pool.close()


def test_threads_end_with_the_pool_and_cost_nothing_while_it_is_idle(checks: Library) -> None:
    """In a process of its own, which no other thread can disturb."""
    script = """
import time
from pathlib import Path
from tests.kernels.cpu import libraries
from limelight.kernels.cpu.threads import ThreadPool
pool = ThreadPool(libraries.load(libraries.VARIANTS[0], libraries.CHECKSUM), 4)
def idle():
    before = time.process_time()
    time.sleep(0.5)
    return time.process_time() - before < 0.05
# On a busy machine the threads may get round to going to sleep late.
print(any(idle() for _ in range(20)))
def count():
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return names.count("limelight-cpu")
print(count())
del pool
print(count())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "3", "0"]


def test_a_process_exits_at_once_and_well_while_a_daemon_thread_runs_programs(checks: Library) -> None:
    script = """
import threading
from tests.kernels.cpu import libraries
from tests.kernels.cpu.test_pool import Checksums
from limelight.kernels.cpu.threads import ThreadPool
library = libraries.load(libraries.VARIANTS[0], libraries.CHECKSUM)
checksums, pool = Checksums(library, 50, 200, 64), ThreadPool(library, 3)
running = threading.Event()
def run():
    while True:
        checksums.run([200] * 50, pool)
        running.set()
threading.Thread(target=run, daemon=True).start()
running.wait()
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60, check=True)


def _name(task: Path) -> str:
    return (task / "comm").read_text().strip()


def _status(task: Path) -> dict[str, str]:
    lines = (task / "status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
