"""Tests of `limelight.kernels.cpu.features`."""

import os
from pathlib import Path

import pytest

from limelight.kernels.cpu.features import NEEDED_FLAGS, runnable_variants, usable_cores


def cpuinfo(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    return path


@pytest.mark.parametrize(
    ("flags", "variants"),
    [
        ("fpu sse2", ["portable"]),
        ("fpu avx2 fma f16c", ["avx2", "portable"]),
        ("fpu avx2 fma", ["portable"]),
        ("fma f16c avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni", ["avx2", "portable"]),
        ("fma f16c avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16", ["avx512", "avx2", "portable"]),
    ],
)
def test_a_variant_runs_where_all_its_instructions_do(tmp_path: Path, flags: str, variants: list[str]) -> None:
    assert runnable_variants(cpuinfo(tmp_path, flags)) == variants


def test_without_flags_only_portable_code_runs(tmp_path: Path) -> None:
    assert runnable_variants(tmp_path / "missing") == ["portable"]
    arm = tmp_path / "arm"
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert runnable_variants(arm) == ["portable"]


def test_every_variant_is_one_that_can_be_compiled() -> None:
    from limelight.kernels.cpu.build import VARIANT_FLAGS

    assert list(NEEDED_FLAGS) == list(VARIANT_FLAGS)


class System:
    """A tree with `proc` and `sys` of a machine."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def allow(self, threads: set[int], siblings: dict[int, str]) -> None:
        self._monkeypatch.setattr(os, "sched_getaffinity", lambda _process: threads)
        for thread, text in siblings.items():
            self.write(f"sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list", text + "\n")

    @property
    def cores(self) -> int:
        return usable_cores(self.root)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    return System(tmp_path, monkeypatch)


def test_cores_are_those_that_the_process_may_run_on(system: System) -> None:
    system.allow({0, 2, 5}, {})
    assert system.cores == 3


def test_hyper_threads_of_one_core_count_once(system: System) -> None:
    system.allow({0, 1, 4, 5, 2}, {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 2: "2,6"})
    assert system.cores == 3


@pytest.mark.parametrize(("limit", "cores"), [("250000 100000", 3), ("50000 100000", 1), ("max 100000", 8), ("", 8)])
def test_the_quota_of_a_control_group_is_rounded_up(system: System, limit: str, cores: int) -> None:
    system.allow(set(range(8)), {})
    system.write("proc/self/cgroup", "0::/a/b\n")
    system.write("sys/fs/cgroup/a/b/cpu.max", limit + "\n")
    assert system.cores == cores


def test_the_smallest_quota_of_all_groups_around_counts(system: System) -> None:
    system.allow(set(range(8)), {})
    system.write("proc/self/cgroup", "0::/a/b\n")
    system.write("sys/fs/cgroup/a/b/cpu.max", "600000 100000")
    system.write("sys/fs/cgroup/a/cpu.max", "400000 100000")
    system.write("sys/fs/cgroup/cpu.max", "max 100000")
    assert system.cores == 4


@pytest.mark.parametrize("mounted", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("group", ["docker/1234/", ""])
@pytest.mark.parametrize(("quota", "cores"), [("150000", 2), ("-1", 8)])
def test_quotas_of_version_1(system: System, mounted: str, group: str, quota: str, cores: int) -> None:
    """In a container without its own namespace the group that /proc names is the mounted one."""
    system.allow(set(range(8)), {})
    system.write("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/1234\n0::/\n")
    system.write(f"sys/fs/cgroup/{mounted}/{group}cpu.cfs_quota_us", quota)
    system.write(f"sys/fs/cgroup/{mounted}/{group}cpu.cfs_period_us", "100000")
    assert system.cores == cores


def test_this_machine_has_a_core() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
