"""Compiling a kernel ahead of time, without a GPU, and what the result takes of a multiprocessor."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

SHARED_MEMORY_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""Most shared memory of one program, by compute capability times ten (CUDA C++ Programming Guide, table 30)."""

WARP_SIZE = 32
POINTER_ALIGNMENT = 16
"""Bytes: what a launch finds for every tensor of torch's, and so what it compiles for."""


@dataclass(frozen=True)
class KernelBuild:
    """One configuration of a kernel, as serving launches it.

    Attributes:
        name: what it is called in the table of `docs/gpu_kernels.md`.
        kernel: the function under `triton.jit`.
        arguments: of every parameter; Triton's name of the type ("*bf16", "i32", "fp32"), or the value of a constant.
        num_warps, num_stages: as in the launch.
        may_spill: registers may overflow to memory; never so in kernels that a decode step runs.
        enable_fp_fusion: products and sums are rounded together.
    """

    name: str
    kernel: Any
    arguments: Mapping[str, object] = field(repr=False)
    num_warps: int
    num_stages: int
    may_spill: bool = False
    enable_fp_fusion: bool = True


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What a compiled kernel takes.

    Attributes:
        registers: per thread.
        stack_bytes: per thread, in device memory; what doesn't fit into registers lies there.
        spills: instructions that read or write the stack.
        shared_bytes: per program.
    """

    registers: int
    stack_bytes: int
    spills: int
    shared_bytes: int

    def programs_per_processor(self, num_warps: int, capability: int) -> int:
        """How many programs of so many warps a multiprocessor holds at once, by registers and shared memory."""
        per_warp = -(-self.registers * WARP_SIZE // 256) * 256
        by_registers = 65536 // (per_warp * num_warps)
        reserved = 1024
        by_memory = (SHARED_MEMORY_BYTES[capability] + reserved) // (self.shared_bytes + reserved)
        return min(by_registers, by_memory, 64 // num_warps)


def compile_build(build: KernelBuild, capability: int) -> Resources:
    """Compile for a GPU of this compute capability times ten, which need not be there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for number, parameter in enumerate(build.kernel.params):
        value = build.arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        if value is None:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = None
            continue
        signature[parameter.name] = str(value)
        if str(value).startswith("*") and not parameter.do_not_specialize_on_alignment:
            attributes[number,] = [["tt.divisibility", POINTER_ALIGNMENT]]
    unknown = set(build.arguments) - set(signature)
    assert not unknown, f"{build.name} has no parameters {sorted(unknown)}"
    compiled = triton.compile(
        ASTSource(build.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, WARP_SIZE),
        options={
            "num_warps": build.num_warps,
            "num_stages": build.num_stages,
            "enable_fp_fusion": build.enable_fp_fusion,
        },
    )
    return _resources(compiled.asm["cubin"], compiled.metadata.shared)


def _resources(cubin: bytes, shared_bytes: int) -> Resources:
    """Read with `cuobjdump`: what is known of registers without it is known only once a GPU has loaded the kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _cuobjdump("-res-usage", path)
        found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        stack_bytes = found["STACK"] + found["LOCAL"]
        spills = len(re.findall(r"\b(?:LDL|STL)\b", _cuobjdump("-sass", path))) if stack_bytes else 0
    return Resources(registers=found["REG"], stack_bytes=stack_bytes, spills=spills, shared_bytes=shared_bytes)


def _cuobjdump(option: str, path: Path) -> str:
    from triton import knobs

    command = [knobs.nvidia.cuobjdump.path, option, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
