"""What `compare.py` measures, and the targets: a small model on a CPU. Arithmetic only, beside the runs themselves."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.sides import Run, Side

FIRST_TOKEN, LAST_TOKEN = 1000, 30000
LONG, CONTEXT, SHORT = 2048, 4096, 128
NEW_TOKENS = 16
"""Length of the last line that is new when a prompt comes again."""

OPENVINO, LLAMA_CPP = "OpenVINO GenAI", "llama.cpp"


@dataclass(frozen=True)
class Workload:
    """One line of the comparison.

    Attributes:
        key: what `--workloads` calls it.
        measure: runs it once and returns the figure. The random numbers are the same for both sides of a round.
        unit: of the figure; "tokens/s" is better when it is more, anything else when it is less.
        targets: the least ratio to each peer, by the peer's name.
    """

    key: str
    title: str
    unit: str
    measure: Callable[[Side, random.Random], float]
    targets: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, limelight: float, peer: float) -> float:
        """How many times better Limelight is."""
        better, worse = (limelight, peer) if self.unit == "tokens/s" else (peer, limelight)
        return better / worse if worse > 0 else float("inf")


def prompts(draw: random.Random, count: int, length: int) -> list[list[int]]:
    """Random token ids."""
    return [draw.choices(range(FIRST_TOKEN, LAST_TOKEN), k=length) for _ in range(count)]


def throughput(streams: int) -> Callable[[Side, random.Random], float]:
    """Output tokens per second of so many streams, 128 tokens in and 64 out, prefill included."""

    def measure(side: Side, draw: random.Random) -> float:
        run = side.generate(prompts(draw, streams, SHORT), 64)
        return run.num_tokens / run.seconds

    return measure


def first_token(side: Side, draw: random.Random) -> float:
    """Milliseconds to the first token after 2,048 that nobody has seen."""
    return side.generate(prompts(draw, 1, LONG), 1).ttft_seconds * 1000


def again(side: Side, draw: random.Random) -> float:
    """Milliseconds to the first token when the same prompt comes again with a new last line."""
    [prompt] = prompts(draw, 1, LONG)
    side.generate([prompt], 1)
    return side.generate([prompt[:-NEW_TOKENS] + prompts(draw, 1, NEW_TOKENS)[0]], 1).ttft_seconds * 1000


def added_by_context(side: Side, draw: random.Random) -> float:
    """Milliseconds that a token takes longer at a context of 4,096 than at 128."""

    def tpot(length: int) -> float:
        run: Run = side.generate(prompts(draw, 1, length), 32)
        return run.tpot_seconds * 1000

    return tpot(CONTEXT) - tpot(SHORT)


WORKLOADS = (
    Workload("1", "1 stream, 128 in, 64 out", "tokens/s", throughput(1), {OPENVINO: 1.6, LLAMA_CPP: 1.7}),
    Workload("8", "8 streams", "tokens/s", throughput(8), {OPENVINO: 1.5, LLAMA_CPP: 1.5}),
    Workload("32", "32 streams", "tokens/s", throughput(32), {OPENVINO: 1.3, LLAMA_CPP: 1.3}),
    Workload("ttft", "first token after 2,048", "ms", first_token, {OPENVINO: 1.1, LLAMA_CPP: 5.0}),
    Workload("again", "the same with a new last line", "ms", again),
    Workload("context", "a token at 4,096 over one at 128", "ms", added_by_context),
)


@dataclass(frozen=True)
class Row:
    """A line of the result. `target` as text; `met` None where there is none."""

    title: str
    limelight: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


def compared(workload: Workload, peer: str, limelight: Sequence[float], other: Sequence[float]) -> Row:
    """The medians of both sides, and their ratio against the target."""
    ours, theirs = statistics.median(limelight), statistics.median(other)
    ratio = workload.ratio(ours, theirs)
    target = next((least for name, least in workload.targets.items() if peer.startswith(name)), None)
    return Row(
        workload.title,
        ours,
        workload.unit,
        peer,
        theirs,
        ratio,
        "" if target is None else f">= {target:g}x",
        None if target is None else ratio >= target,
    )


def limited(title: str, value: float, unit: str, limit: float) -> Row:
    """A figure of Limelight's own that may be `limit` at the most."""
    return Row(title, value, unit, target=f"<= {limit:g}", met=value <= limit)


def at_least(title: str, value: float, unit: str, least: float) -> Row:
    """A figure of Limelight's own that must be `least` or more."""
    return Row(title, value, unit, target=f">= {least:g}", met=value >= least)


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    width = max(4, *(len(row.peer) for row in rows))
    lines = [f"{'':<42} {'Limelight':>10} {'':<9} {'peer':<{width}} {'value':>10} {'ratio':>7}  target"]
    for row in rows:
        value = "" if row.peer_value is None else f"{row.peer_value:,.2f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        lines.append(
            f"{row.title:<42} {row.limelight:>10,.2f} {row.unit:<9} {row.peer:<{width}} {value:>10} {ratio:>7}  "
            f"{row.target:<9} {verdict}".rstrip()
        )
    return "\n".join(lines)
