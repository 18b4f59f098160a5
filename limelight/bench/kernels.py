"""`limelight bench kernels`: the operations of a recorded pass by kind, beside what memory and the product can do."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from limelight.bench.bandwidth import read_bandwidth
from limelight.bench.figures import WIDTH, Figures, row
from limelight.bench.products import RATED_FORMATS, SWITCHED_FORMATS, product_rate, switch_over, switch_over_lines
from limelight.bench.target import BenchmarkFailed
from limelight.config import EngineConfig
from limelight.kernels.cpu.library import Library
from limelight.models.checkpoint import open_checkpoint
from limelight.models.device_choice import choose_device
from limelight.models.hub import resolve
from limelight.models.inspection import inspect_model
from limelight.models.loaded_model import LoadedModel
from limelight.models.loading import load_model
from limelight.models.recorded_step_executor import RecordedStepExecutor
from limelight.progress import Report
from limelight.step import Capacity, Chunk, SeatSampling, SeatTaken, Step

DECODE_ROWS = (1, 8, 32)
PREFILL_ROWS = (128, 512, 2048)
"""More than a step takes go in several, one after the other."""
LONG_REPEATS = 3
"""Of what takes several steps."""
SMALL_SHARE = 0.005
NOT_RECORDED = "this model does not run on the kernels in C here, so there is no recorded pass to time"
EMBEDDING = "model.embed_tokens.weight"

Pass = list[tuple[str, float]]
"""Name of each operation in order, and the seconds that it took."""


class ModelSize(msgspec.Struct, frozen=True):
    """What a pass reads and multiplies.

    Attributes:
        weights_bytes: of the model in memory; every pass reads them once.
        kv_bytes_per_token: keys and values of all layers.
        num_weights: of the matrices that every row meets.
        num_head_weights: of the output projection, which only rows meet that draw a token.
    """

    weights_bytes: int
    kv_bytes_per_token: int
    num_weights: int
    num_head_weights: int


class Roof(msgspec.Struct, frozen=True):
    """What this machine can do, as measured beside the passes.

    Attributes:
        bandwidth: bytes of memory read per second.
        product_rate: int8 operations per second of the packed product itself, all in the cache; a product of two
            numbers and the sum with a third are two.
    """

    bandwidth: float
    product_rate: float

    def least_seconds(self, size: ModelSize, num_rows: int, num_sampled: int, kv_tokens: int) -> dict[str, float]:
        """What the products and, for `kv_tokens` to be read, attention take at least, by kind of operation.

        Products read all weights once, or multiply, whichever takes longer.
        """
        operations = 2 * (num_rows * size.num_weights + num_sampled * size.num_head_weights)
        least = {"linear": max(size.weights_bytes / self.bandwidth, operations / self.product_rate)}
        if kv_tokens:
            least["attend"] = kv_tokens * size.kv_bytes_per_token / self.bandwidth
        return least


def kernel_figures(
    config: EngineConfig,
    report: Report,
    context: int,
    repeats: int,
    passed: Callable[[], None],
    loader: Callable[[EngineConfig, Report], LoadedModel] | None = None,
) -> Figures:
    """Times decode steps of 1, 8 and 32 rows and prefills of 128, 512 and 2,048 tokens, as far as the settings allow
    them, and products of few rows in both ways.

    Args:
        context: tokens before each decoded one.
        repeats: of each step; the fastest counts.
        passed: called after each kind of step, and when the products are timed.
        loader: what loads the model, the usual one unless given.

    Raises:
        ModelError: the model cannot be loaded.
        BenchmarkFailed: it does not run on the kernels in C.
    """
    if config.cpu_kernels == "reference" or choose_device(config.device) != "cpu":
        raise BenchmarkFailed(NOT_RECORDED)
    model = (loader or load_model)(config, report)
    executor, capacity = model.executor, model.capacity
    if not isinstance(executor, RecordedStepExecutor):
        executor.close()
        raise BenchmarkFailed(NOT_RECORDED)
    try:
        size = model_size(resolve(config.model, config.revision, report), config)
        threads = executor.num_threads
        roofs = [measured_roof(executor.library, threads)]
        context = min(context, capacity.max_model_len - 1)
        timed = []
        for name, prepare, run, kv_tokens in steps(capacity, context):
            for before in prepare:
                executor.submit(before)()
            times = repeats if len(run) == 1 else min(repeats, LONG_REPEATS)
            fastest = min((profiled(executor, run) for _ in range(times)), key=total_seconds)
            chunks = [chunk for step in run for chunk in step.chunks]
            seats = tuple({chunk.seat for chunk in chunks})
            executor.submit(Step(number=0, chunks=(), released=seats))()
            num_rows, num_sampled = sum(chunk.num_tokens for chunk in chunks), sum(chunk.sample for chunk in chunks)
            timed.append((name, num_rows, num_sampled, kv_tokens, fastest))
            passed()
        roofs.append(measured_roof(executor.library, threads))
        switches = [switch_over(executor.library, name) for name in SWITCHED_FORMATS]
        passed()
    finally:
        executor.close()
    roof = Roof(max(one.bandwidth for one in roofs), max(one.product_rate for one in roofs))
    passes = [
        pass_figures(name, num_rows, fastest, roof.least_seconds(size, num_rows, num_sampled, kv_tokens))
        for name, num_rows, num_sampled, kv_tokens, fastest in timed
    ]
    return {
        "model_id": model.name,
        "variant": executor.library.variant,
        "num_threads": threads,
        "context": context,
        "weights_bytes": size.weights_bytes,
        "kv_bytes_per_token": size.kv_bytes_per_token,
        "memory_gb_per_second": roof.bandwidth / 1e9,
        "product_gop_per_second": roof.product_rate / 1e9,
        "passes": passes,
        "switch_overs": [one for one in switches if one is not None],
    }


def pass_figures(name: str, num_rows: int, operations: Pass, least_seconds: dict[str, float]) -> Figures:
    """One pass: milliseconds in all, and by kind of operation (most first), with how many there are.

    Args:
        least_seconds: by kind; what has no entry takes nothing at least.
    """
    total = total_seconds(operations)
    kinds: dict[str, dict[str, float]] = {}
    for kind, seconds in operations:
        entry = kinds.setdefault(kind, {"ms": 0.0, "num_operations": 0})
        entry["ms"] += seconds * 1000
        entry["num_operations"] += 1
    for kind, entry in kinds.items():
        entry["share"] = entry["ms"] / (total * 1000)
        if kind in least_seconds:
            entry["roofline_share"] = least_seconds[kind] * 1000 / entry["ms"]
    return {
        "name": name,
        "num_rows": num_rows,
        "ms": total * 1000,
        "least_ms": sum(least_seconds.values()) * 1000,
        "roofline_share": sum(least_seconds.values()) / total,
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1]["ms"])),
    }


def profiled(executor: RecordedStepExecutor, run: Sequence[Step]) -> Pass:
    """Operations of all steps, one after the other."""
    return [operation for step in run for operation in executor.profile(step)]


def total_seconds(operations: Pass) -> float:
    """Of all operations together."""
    return sum(seconds for _, seconds in operations)


def steps(capacity: Capacity, context: int) -> list[tuple[str, list[Step], list[Step], int]]:
    """Name, steps that come before, the steps to time, and the tokens whose keys and values they read.

    A prefill computes with keys and values far longer than it reads them: 0.
    """
    draw = random.Random(0)  # noqa: S311 (reproducible on purpose)
    pages_each = math.ceil((context + 1) / capacity.page_size)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(capacity.vocab_size), k=count))

    def taken(seat: int, length: int) -> SeatTaken:
        return SeatTaken(seat=seat, sampling=SeatSampling(temperature=0.0), num_prompt_tokens=length)

    found = []
    for rows in DECODE_ROWS:
        if rows > capacity.num_seats or rows * pages_each > capacity.num_pages:
            continue
        before = []
        for seat in range(rows):
            pages = tuple(range(seat * pages_each, (seat + 1) * pages_each))
            for start in range(0, context, capacity.max_num_batched_tokens):
                count = min(capacity.max_num_batched_tokens, context - start)
                new_pages = () if start else pages
                chunk = Chunk(seat=seat, start=start, num_tokens=count, token_ids=tokens(count), new_pages=new_pages)
                before.append(Step(number=0, chunks=(chunk,), taken=() if start else (taken(seat, context),)))
        chunks = [
            Chunk(seat=seat, start=context, num_tokens=1, token_ids=tokens(1), sample=True) for seat in range(rows)
        ]
        found.append(
            (
                f"decode, {rows} row{'s' * (rows > 1)}",
                before,
                [Step(number=0, chunks=tuple(chunks))],
                rows * (context + 1),
            )
        )
    for rows in PREFILL_ROWS:
        pages = tuple(range(math.ceil(rows / capacity.page_size)))
        if rows > capacity.max_model_len - 1 or len(pages) > capacity.num_pages:
            continue
        first = Chunk(seat=0, start=0, num_tokens=1, token_ids=tokens(1), new_pages=pages)
        before = [Step(number=0, chunks=(first,), taken=(taken(0, rows),))]
        run = []
        for start in range(0, rows, capacity.max_num_batched_tokens):
            count = min(capacity.max_num_batched_tokens, rows - start)
            is_last = start + count == rows
            chunk = Chunk(seat=0, start=start, num_tokens=count, token_ids=tokens(count), sample=is_last)
            run.append(Step(number=0, chunks=(chunk,)))
        found.append((f"prefill, {rows:,} tokens", before, run, 0))
    return found


def model_size(path: Path, config: EngineConfig) -> ModelSize:
    """Sizes by the headers of a model that is here. Of experts all count, which is too much for a few rows."""
    checkpoint = open_checkpoint(path)
    shapes = {name: checkpoint.shape(name) for name in checkpoint.names()}
    matrices = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) > 1}
    head = matrices.pop("lm_head.weight", 0)
    embedding = matrices.pop(EMBEDDING, 0)
    inspection = inspect_model(path, config)
    return ModelSize(
        inspection.weights_bytes or 0, inspection.kv_bytes_per_token or 0, sum(matrices.values()), head or embedding
    )


def measured_roof(library: Library, num_threads: int) -> Roof:
    """What all threads together reach now."""
    rates = [product_rate(library, num_threads, name) for name in RATED_FORMATS]
    return Roof(read_bandwidth(num_threads), max(rates))


def lines(measured: Figures) -> list[str]:
    """The figures as lines of a table; kinds of operations that take next to nothing are one line."""
    out = [
        row("Kernels:", measured["variant"]),
        row("Threads:", measured["num_threads"]),
        row("Weights in memory (MB):", measured["weights_bytes"] / 1e6),
        row("Memory, read (GB/s):", measured["memory_gb_per_second"]),
        row("Product of int8 in the cache (Gop/s):", measured["product_gop_per_second"]),
    ]
    for each in measured["passes"]:
        out.append(f"{' ' + each['name'] + ' ':-^{WIDTH}}")
        out.append(f"{'':<26} {'ms':>10} {'share':>8} {'of the roof':>12}")
        out.append(_line("all", each["ms"], 1.0, each["roofline_share"]))
        small = 0.0
        for kind, entry in each["kinds"].items():
            if entry["share"] < SMALL_SHARE:
                small += entry["ms"]
            else:
                named = f"{kind} ({entry['num_operations']})"
                out.append(_line(named, entry["ms"], entry["share"], entry.get("roofline_share")))
        out.append(_line("others", small, small / each["ms"], None))
    return out + switch_over_lines(measured["switch_overs"])


def _line(name: str, milliseconds: float, share: float, of_roof: float | None) -> str:
    return f"{name:<26} {milliseconds:>10.3f} {share:>8.1%} {'' if of_roof is None else f'{of_roof:.0%}':>12}".rstrip()
