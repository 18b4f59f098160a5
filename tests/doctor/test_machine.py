"""What `limelight doctor` reads of a machine, on made-up ones."""

import json
from pathlib import Path

import msgspec
import pytest

from limelight.doctor.machine import VARIABLES, look_at_machine
from limelight.kernels.cpu.features import NEEDED_FLAGS

GIB = 2**30


class System:
    """A tree with `proc` and `sys`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")

    def write(self, path: str, content: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_memory_is_told_with_its_limit(system: System) -> None:
    machine = look_at_machine({}, system.root)
    assert (machine.memory_bytes, machine.memory_limit_bytes, machine.free_memory_bytes) == (16 * GIB, None, 8 * GIB)
    system.write("proc/self/cgroup", "0::/outer/inner")
    system.write("sys/fs/cgroup/outer/memory.max", 4 * GIB)
    system.write("sys/fs/cgroup/outer/memory.current", GIB)
    machine = look_at_machine({}, system.root)
    assert (machine.memory_bytes, machine.memory_limit_bytes, machine.free_memory_bytes) == (16 * GIB, 4 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("flags", "variants", "lacking"),
    [
        (NEEDED_FLAGS["avx512"] | NEEDED_FLAGS["avx2"], ("avx512", "avx2", "portable"), ()),
        (NEEDED_FLAGS["avx2"], ("avx2", "portable"), tuple(sorted(NEEDED_FLAGS["avx512"] - NEEDED_FLAGS["avx2"]))),
        ({"fma"}, ("portable",), ("avx2", "f16c")),
    ],
)
def test_the_processor_is_told_by_what_it_runs_and_lacks(
    system: System, flags: frozenset[str], variants: tuple[str, ...], lacking: tuple[str, ...]
) -> None:
    system.write("proc/cpuinfo", f"flags\t: {' '.join(sorted(flags))}")
    machine = look_at_machine({}, system.root)
    assert (machine.variants, machine.lacking) == (variants, lacking)


def test_a_quota_bounds_the_cores(system: System) -> None:
    system.write("proc/self/cgroup", "0::/box")
    system.write("sys/fs/cgroup/box/cpu.max", "100000 100000")
    assert look_at_machine({}, system.root).cores == 1


def test_variables_are_told_by_name_and_never_by_value(system: System) -> None:
    environment = {name: f"secret-{name}" for name in VARIABLES} | {"UNRELATED": "x"}
    machine = look_at_machine(environment, system.root)
    assert machine.variables == VARIABLES
    assert "secret" not in json.dumps(msgspec.to_builtins(machine))
    assert look_at_machine({"HF_TOKEN": "", "https_proxy": "http://x"}, system.root).variables == ("HTTPS_PROXY",)


def test_a_machine_without_proc_has_what_can_be_found_out(tmp_path: Path) -> None:
    machine = look_at_machine({}, tmp_path)
    assert machine.memory_limit_bytes is None
    assert machine.cores >= 1
    assert machine.variants[-1:] in (("portable",), ())
