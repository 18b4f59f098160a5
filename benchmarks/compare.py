"""Limelight beside other runtimes on the same CPU and the same model: alternating runs, like against like, with ratios.

    python -m benchmarks.compare --openvino-python ~/peers/bin/python --llama-python ~/peers/bin/python --json out.json
    make bench OPENVINO_PYTHON=... LLAMA_SERVER=... VLLM_PYTHON=...

Each runtime has a process of its own, and its Python may be another one. OpenVINO GenAI and transformers run beside
Limelight's engine, servers (llama.cpp, vLLM) beside `limelight serve`, over HTTP. Every round runs Limelight, then the
peer, on the same prompts of random token ids; figures are medians of the rounds. Without peers the figures of Limelight
itself are measured against their limits. Exit code: 1 if a target was missed.
"""

import argparse
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.sides import ROOT, ProcessSide, ServerSide, Side, SideFailed, free_port
from benchmarks.workloads import (
    CONTEXT,
    LLAMA_CPP,
    LONG,
    OPENVINO,
    SHORT,
    WORKLOADS,
    Row,
    Workload,
    again,
    at_least,
    compared,
    first_token,
    limited,
    prompts,
    table,
)
from limelight.bench.bandwidth import read_bandwidth
from limelight.config import EngineConfig
from limelight.kernels.cpu.features import usable_cores
from limelight.models.hub.names import embedded_model
from limelight.models.inspection import inspect_model

GIB = 2**30
OWN = ("start", "memory", "reuse", "context", "loop")
"""Figures that have a limit instead of a peer."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    rows: list[Row] = []
    for name, ours, theirs in pairs(options):
        try:
            rows += compare(options, name, ours, theirs)
        except SideFailed as error:
            print(f"left out: {error}", file=sys.stderr)
    rows += own_figures(options)
    print(table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    return 1 if any(row.met is False for row in rows) else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    embedded = embedded_model()
    parser.add_argument(
        "model", nargs="?", default=embedded and str(embedded), help="default: the default model's file"
    )
    parser.add_argument("--openvino-python", metavar="PYTHON", help="a Python with openvino-genai")
    parser.add_argument("--transformers-python", metavar="PYTHON", help="a Python with transformers")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's llama-server")
    parser.add_argument(
        "--llama-python", metavar="PYTHON", help="or a Python with xllamacpp, which holds the same server"
    )
    parser.add_argument("--vllm-python", metavar="PYTHON", help="a Python with vLLM for the CPU")
    keys = [workload.key for workload in WORKLOADS]
    parser.add_argument("--workloads", nargs="*", choices=keys, default=keys, metavar="KEY", help=" ".join(keys))
    parser.add_argument(
        "--own", nargs="*", choices=OWN, default=OWN, metavar="KEY", help=f"of Limelight: {' '.join(OWN)}"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args(arguments)
    if options.model is None:
        parser.error("the default model is not installed; name a .gguf file")
    return options


Open = Callable[[], Side]


def pairs(options: argparse.Namespace) -> list[tuple[str, Open, Open]]:
    """The peers that were given: name, what opens Limelight in the same manner, what opens the peer."""
    model: str = options.model
    found: list[tuple[str, Open, Open]] = []
    in_process = (
        (OPENVINO, options.openvino_python, "openvino_peer"),
        ("transformers", options.transformers_python, "transformers_peer"),
    )
    for name, python, script in in_process:
        if python:
            command = [python, "-m", f"benchmarks.peers.{script}", model]
            found.append((name, lambda: limelight_process(model), lambda n=name, c=command: ProcessSide(n, c)))  # type: ignore[misc]
    served: list[tuple[str, Callable[[int], list[str]]]] = []
    if options.llama_server:
        sizes = ["--parallel", "32", "--ctx-size", str(32 * (CONTEXT + 256))]
        served.append((LLAMA_CPP, lambda port: [options.llama_server, "-m", model, "--port", str(port), *sizes]))
    elif options.llama_python:
        module = "benchmarks.peers.llama_cpp_peer"
        served.append((LLAMA_CPP, lambda port: [options.llama_python, "-m", module, model, str(port)]))
    if options.vllm_python:
        vllm = [options.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port"]
        served.append(("vLLM", lambda port: [*vllm, str(port)]))
    for name, command_at in served:
        found.append((name, lambda: limelight_server(model), lambda n=name, c=command_at: server(n, c)))  # type: ignore[misc]
    return found


def compare(options: argparse.Namespace, name: str, open_ours: Open, open_theirs: Open) -> list[Row]:
    """All workloads on both sides in turn.

    Raises:
        SideFailed: a side does not start, or fails.
    """
    chosen = [workload for workload in WORKLOADS if workload.key in options.workloads]
    ours = open_ours()
    try:
        theirs = open_theirs()
        try:
            rows = [
                compared(workload, theirs.name, *alternate(options, workload, ours, theirs))
                for workload in tqdm(chosen, desc=name, disable=not sys.stderr.isatty())
            ]
            start = Workload("start", "start to the first token", "s", lambda side, _: side.start_seconds)
            memory = Workload(
                "memory", "resident memory after that", "GiB", lambda side, _: side.resident_bytes() / GIB
            )
            for workload in (start, memory):
                values = [[workload.measure(side, random.Random(0))] for side in (ours, theirs)]
                rows.append(compared(workload, theirs.name, *values))
            return rows
        finally:
            theirs.close()
    finally:
        ours.close()


def alternate(
    options: argparse.Namespace, workload: Workload, ours: Side, theirs: Side
) -> tuple[list[float], list[float]]:
    """The figures of each side, one per round, after a round that does not count."""
    values: tuple[list[float], list[float]] = ([], [])
    for number in range(options.rounds + 1):
        for side, own in zip((ours, theirs), values, strict=True):
            value = workload.measure(side, random.Random(f"{options.seed}-{workload.key}-{number}"))
            if number:
                own.append(value)
    return values


def own_figures(options: argparse.Namespace) -> list[Row]:
    """What has a limit and no peer."""
    rows: list[Row] = []
    kv_bytes = inspect_model(Path(options.model), EngineConfig()).kv_bytes_per_token or 0
    if {"start", "reuse", "context"} & set(options.own):
        side = limelight_server(options.model)
        try:
            draw = random.Random(options.seed)
            if "start" in options.own:
                rows.append(limited("start to the first token", side.start_seconds, "s", 3.0))
            if "reuse" in options.own:
                cold = best(options, lambda: first_token(side, draw))
                warm = best(options, lambda: again(side, draw))
                rows.append(at_least("a known prompt with a new last line", cold / warm, "x faster", 10.0))
            if "context" in options.own:
                added = next(workload for workload in WORKLOADS if workload.key == "context")
                bandwidth = read_bandwidth(usable_cores())
                floor_ms = (CONTEXT - SHORT) * kv_bytes / bandwidth * 1000
                value = best(options, lambda: added.measure(side, draw))
                rows.append(limited(f"{added.title} / reading its KV", value / floor_ms, "x", 1.3))
        finally:
            side.close()
    if "memory" in options.own:
        side = limelight_process(options.model, str(GIB))
        try:
            draw = random.Random(options.seed)
            for _ in range(-(-GIB // (LONG * max(kv_bytes, 1)))):
                side.generate(prompts(draw, 1, LONG), 1)
            rows.append(limited("resident memory, 1 GiB of KV in use", side.resident_bytes() / GIB, "GiB", 1.7))
        finally:
            side.close()
    if "loop" in options.own:
        rows += loop_figures()
    return rows


def loop_figures() -> list[Row]:
    """What `loop.py` measures, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "loop.json"
        subprocess.run([sys.executable, "-m", "benchmarks.loop", "--json", str(result)], check=True, cwd=ROOT, stdout=2)
        measured = json.loads(result.read_text())
    return [
        limited("StepDone to the next Step, 64 sequences", measured["median_planning_ms"], "ms", 0.5),
        limited("event loop per token, 64 streams (HTTP)", measured["loop_us_per_token"], "us", 20.0),
        limited("lag of the event loop, p99", measured["p99_lag_ms"], "ms", 5.0),
    ]


def best(options: argparse.Namespace, measure: Callable[[], float]) -> float:
    """The least of the rounds, after one that does not count."""
    measure()
    return min(measure() for _ in range(options.rounds))


def limelight_process(model: str, *arguments: str) -> Side:
    """Limelight's engine, called in its process."""
    return ProcessSide("Limelight", [sys.executable, "-m", "benchmarks.peers.limelight_peer", model, *arguments])


def limelight_server(model: str) -> Side:
    """`limelight serve`."""
    return server("Limelight", lambda port: [sys.executable, "-m", "limelight", "serve", model, "--port", str(port)])


def server(name: str, command_at: Callable[[int], list[str]]) -> Side:
    """A server on a free port."""
    port = free_port()
    return ServerSide(name, command_at(port), port)


if __name__ == "__main__":
    raise SystemExit(main())
