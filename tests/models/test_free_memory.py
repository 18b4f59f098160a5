from pathlib import Path

import pytest

from limelight.models.free_memory import free_memory_bytes

KIB, MIB, GIB = 2**10, 2**20, 2**30
MEMINFO = (
    f"MemTotal: {16 * MIB} kB\nMemFree: {MIB} kB\nMemAvailable: {8 * MIB} kB\nCached: {4 * MIB} kB\nHugePages: x\n"
)


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        self.write("proc/meminfo", MEMINFO)

    def write(self, path: str, content: object) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")

    def free(self) -> int | None:
        return free_memory_bytes(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_control_groups_it_is_what_the_machine_has_available(machine: Machine) -> None:
    assert machine.free() == 8 * GIB


def test_an_old_kernel_counts_free_and_cached_pages(machine: Machine) -> None:
    machine.write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1024 kB\nBuffers: 512 kB\nCached: 2048 kB")
    assert machine.free() == 3584 * KIB


def test_a_version_2_limit_counts_less_what_is_used(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box")
    machine.write("cgroup/box/memory.max", 3 * GIB)
    machine.write("cgroup/box/memory.current", GIB)
    assert machine.free() == 2 * GIB


def test_cached_file_pages_do_not_count_as_used(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box")
    machine.write("cgroup/box/memory.max", 3 * GIB)
    machine.write("cgroup/box/memory.current", 2 * GIB)
    machine.write("cgroup/box/memory.stat", f"anon {GIB}\nactive_file 5\ninactive_file {GIB}")
    assert machine.free() == 2 * GIB


def test_the_tightest_limit_of_the_hierarchy_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/outer/middle/inner")
    for name, limit, used in (
        ("outer", 2 * GIB, GIB),
        ("outer/middle", 5 * GIB, 0),
        ("outer/middle/inner", 6 * GIB, 0),
    ):
        machine.write(f"cgroup/{name}/memory.max", limit)
        machine.write(f"cgroup/{name}/memory.current", used)
    assert machine.free() == GIB


def test_inside_a_container_the_own_group_is_the_root(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/../../system.slice/docker-abc")
    machine.write("cgroup/memory.max", 4 * GIB)
    machine.write("cgroup/memory.current", GIB)
    assert machine.free() == 3 * GIB


def test_no_limit_is_no_limit(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box")
    machine.write("cgroup/box/memory.max", "max")
    machine.write("cgroup/box/memory.current", GIB)
    assert machine.free() == 8 * GIB


def test_a_version_1_limit_is_found_among_other_controllers(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "12:cpu,cpuacct:/other\n4:memory:/box\n1:name=systemd:/x\n0::/")
    machine.write("cgroup/memory/box/memory.limit_in_bytes", 3 * GIB)
    machine.write("cgroup/memory/box/memory.usage_in_bytes", 2 * GIB)
    machine.write("cgroup/memory/box/memory.stat", f"inactive_file 7\ntotal_inactive_file {GIB}")
    machine.write("cgroup/memory/memory.limit_in_bytes", 2**63 - 4096)
    machine.write("cgroup/memory/memory.usage_in_bytes", 4 * GIB)
    assert machine.free() == 2 * GIB


def test_a_group_over_its_limit_leaves_nothing(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/")
    machine.write("cgroup/memory.max", GIB)
    machine.write("cgroup/memory.current", 2 * GIB)
    assert machine.free() == 0


@pytest.mark.parametrize("content", ["", "garbage", "0:", "::::", "0::/../../../etc", "7:memory"])
def test_an_unreadable_group_list_is_no_limit(machine: Machine, content: str) -> None:
    machine.write("proc/self/cgroup", content)
    assert machine.free() == 8 * GIB


def test_this_machine_has_memory() -> None:
    free = free_memory_bytes()
    assert free is not None
    assert free > MIB
