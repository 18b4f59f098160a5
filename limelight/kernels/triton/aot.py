"""Every configuration of a Triton kernel that serving launches for the models below, compiled without a GPU.

    python -m limelight.kernels.triton.aot docs/gpu_kernels.md

writes registers, spills and shared memory of each into the table of that page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from limelight.kernels.triton import attention, elementwise, experts, fp8_rows, kv, sampling, step_input
from limelight.kernels.triton.build import SHARED_MEMORY_BYTES, KernelBuild, Resources, compile_build
from limelight.kernels.triton.shapes import SHAPES

VOCAB_SIZES = (128_256, 262_144)
NORMED = ((4096, "bf16", "bf16"), (8192, "fp16", "fp16"), (5376, "bf16", "fp32"))
"""Hidden sizes, and Triton's names of the types of the values and of the norms' weights."""

EXPERTS = ((8, 2, 4096, 14336), (128, 8, 2048, 768))
"""How many there are, how many a row takes, the hidden size, and the width of an expert."""

TABLE_BEGINS, TABLE_ENDS = "<!-- table begins -->\n", "<!-- table ends -->\n"


def serving_builds(capability: int) -> Iterator[KernelBuild]:
    """All kernels, for all shapes."""
    yield from step_input.builds()
    yield from fp8_rows.builds(capability)
    for vocab_size in VOCAB_SIZES:
        yield from sampling.builds(vocab_size)
    for hidden_size, dtype, norm_dtype in NORMED:
        yield from elementwise.builds(hidden_size, dtype, norm_dtype)
    for sizes in EXPERTS:
        yield from experts.builds(*sizes, "bf16")
    for shape in SHAPES:
        yield from kv.builds(shape, capability)
        yield from attention.builds(shape, capability)


def table(capability: int) -> Iterator[str]:
    """Lines of a table in Markdown, as the kernels are compiled."""
    yield f"### sm_{capability}\n\n"
    yield "| kernel | warps | stages | registers | spills | stack bytes | shared KiB | programs per SM |\n"
    yield "|---|---|---|---|---|---|---|---|\n"
    for build in serving_builds(capability):
        yield _line(build, compile_build(build, capability), capability)
    yield "\n"


def _line(build: KernelBuild, taken: Resources, capability: int) -> str:
    cells = (
        build.name,
        build.num_warps,
        build.num_stages,
        taken.registers,
        taken.spills,
        taken.stack_bytes,
        f"{taken.shared_bytes / 1024:.1f}",
        taken.programs_per_processor(build.num_warps, capability),
    )
    return "| " + " | ".join(map(str, cells)) + " |\n"


def main(path: Path) -> None:
    """Write the tables between the marks of the page."""
    before, _, rest = path.read_text().partition(TABLE_BEGINS)
    _, _, after = rest.partition(TABLE_ENDS)
    lines = [line for capability in SHARED_MEMORY_BYTES for line in table(capability)]
    path.write_text(before + TABLE_BEGINS + "".join(lines) + TABLE_ENDS + after)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
