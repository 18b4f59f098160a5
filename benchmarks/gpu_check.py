"""Whether the GPU path is right, and how close it comes to what the GPU can do, in at most 8 minutes.

    python -m benchmarks.gpu_check --json gpu.json

Each section runs in a process of its own: a fault that leaves a GPU unusable to one does not reach the next. Weights
are random and made on the device. `--dry-run` runs everything without a GPU, tiny and in the interpreter: that says
that the program works, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECTIONS = (
    "machine",
    "kernels",
    "tokens",
    "products",
    "decode-8b",
    "prefill-8b",
    "server",
    "decode-0.6b",
    "prefill-0.6b",
    "transformers",
)
LIMIT_SECONDS = 470.0
LEAST_SECONDS = 10.0
"""A section is not begun with less time left."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sections, print a table, write the figures. Exit code 1 if a section failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SECTIONS, help="run this section; repeat it for more")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, tiny and interpreted")
    parser.add_argument("--limit-s", type=float, default=LIMIT_SECONDS, metavar="S", help="for all sections together")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = tuple(options.only or SECTIONS)
    if options.here:
        figures = in_this_process(chosen[0], options.dry_run)
        options.json.write_text(json.dumps(figures))
        return
    found: dict[str, Any] = {}
    ends_at = time.monotonic() + options.limit_s
    for name in chosen:
        left = ends_at - time.monotonic()
        found[name] = (
            in_process_of_its_own(name, left, options.dry_run)
            if left > LEAST_SECONDS
            else {"failed": "no time was left for it"}
        )
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))
    raise SystemExit(any("failed" in figures or figures.get("passed") is False for figures in found.values()))


def in_this_process(name: str, is_dry: bool) -> dict[str, Any]:
    """The figures of a section."""
    if is_dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from benchmarks.gpu_sections import run_section

    return run_section(name, is_dry=is_dry)


def in_process_of_its_own(name: str, limit_seconds: float, is_dry: bool) -> dict[str, Any]:
    """The figures of a section and the seconds it took, or how it failed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--here", "--only", name, "--json", str(written)]
        command += ["--dry-run"] if is_dry else []
        try:
            ended = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"it was not done in {limit_seconds:.0f} s"}
        if ended.returncode or not written.exists():
            words = ended.stdout.strip().splitlines()
            print(ended.stdout, file=sys.stderr)
            return {"failed": words[-1] if words else f"exit code {ended.returncode}"}
        figures: dict[str, Any] = json.loads(written.read_text())
    return {**figures, "section_seconds": time.monotonic() - started}


def table(found: dict[str, Any]) -> list[str]:
    """A line for each figure, short enough to be the end of a log."""
    lines = []
    for section, figures in found.items():
        for name, value in figures.items():
            cells = value.items() if isinstance(value, dict) else ((None, value),)
            shown = "  ".join(text if label is None else f"{label} {text}" for label, text in _shown(cells))
            lines.append(f"{section:<13} {name:<26} {shown}")
    return lines


def _shown(cells: Any) -> list[tuple[str | None, str]]:
    return [(label, f"{value:,.4g}" if isinstance(value, float) else str(value)) for label, value in cells]


if __name__ == "__main__":
    main()
