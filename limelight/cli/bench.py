"""`limelight bench`: runs what was asked for, prints the figures, writes them as JSON and as a picture."""

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from limelight import __version__
from limelight.bench.figures import WIDTH, Figures, figures, row, table
from limelight.bench.offline import OfflineLoad, generate_all, latency_figures, throughput_figures
from limelight.bench.plots.drawing import Drawing, check_plot, write_plot
from limelight.bench.plots.runs import plot_batches, plot_requests, plot_starts
from limelight.bench.request_result import RequestResult
from limelight.bench.serving import ServingLoad, drive, started_server
from limelight.bench.startup import Start, measure_start, startup_figures
from limelight.bench.target import Target, chosen_model
from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.settings import engine_config
from limelight.cli.terminal import interruptible_by_the_system, printable, say
from limelight.engine import Engine, ModelLoader
from limelight.errors import ConfigError

SHOWN_ERRORS = 3
DEFAULT_CONCURRENCY = 8

T = TypeVar("T")


def bench(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """Runs one benchmark; 1 if nothing was completed.

    Raises:
        LimelightError: options that do not go together, nothing answers, or the model cannot be loaded.
    """
    if options.plot is not None:
        check_plot(options.plot)
    if options.json not in (None, "-") and not Path(options.json).absolute().parent.is_dir():
        raise ConfigError(f"--json {options.json}: there is no folder {Path(options.json).absolute().parent}")
    if options.benchmark == "serve":
        return _serve(options)
    if options.benchmark == "throughput":
        return _run(_throughput(options, loader))
    if options.benchmark == "latency":
        return _run(_latency(options, loader))
    return _startup(options)


# ---- serve


def _serve(options: argparse.Namespace) -> int:
    concurrency = options.concurrency or (None if options.request_rate else DEFAULT_CONCURRENCY)
    names = {name: getattr(options, name) for name in ServingLoad.__struct_fields__ if hasattr(options, name)}
    load = ServingLoad(**{**names, "concurrency": concurrency, "timeout_seconds": options.timeout})
    load.prompts()  # a tokenizer that cannot be read is told before a server is started
    if not options.start_server:
        if options.serve_args:
            raise ConfigError("--serve-args are for the server of --start-server; add that, or leave them out")
        return _run(_drive(options, load, Target.parse(options.base_url, options.api_key)))
    with started_server(shlex.split(options.serve_args)) as base_url:
        return _run(_drive(options, load, Target.parse(base_url, options.api_key)))


async def _drive(options: argparse.Namespace, load: ServingLoad, target: Target) -> int:
    model = chosen_model(target, options.model)
    if options.warmup:
        changed = {"num_prompts": options.warmup, "seed": load.seed + 1, "request_rate": None}
        await drive(target, model, ServingLoad(**{**_fields(load), **changed}), lambda _: None)
    with _progress(options, load.num_prompts) as bar:
        results, duration = await drive(target, model, load, lambda result: _count(bar, result))
    measured = {
        **_about("serve", model),
        "num_prompts": load.num_prompts,
        "max_concurrency": load.concurrency,
        "request_rate": load.request_rate,
        "burstiness": load.burstiness,
        "input_len": load.input_len,
        "output_len": load.output_len,
        "prefix_len": load.prefix_len,
        "prompt_kind": "words" if load.sends_words else "tokens",
        "seed": load.seed,
        **figures(results, duration, options.percentiles, dict(options.goodput)),
    }
    _tell(options, measured, table(measured, "Serving Benchmark Result", options.percentiles))
    if measured["num_estimated"]:
        say("the server tells no usage: prompts are counted as they were asked for, and an event as one token")
    at_once = f"{load.concurrency} at once" if load.concurrency else "no limit at once"
    rate = f", {load.request_rate:g} sent per second" if load.request_rate else ""
    subtitle = (
        f"{load.num_prompts} requests, {at_once}{rate}, {load.prefix_len + load.input_len} {measured['prompt_kind']} in"
    )
    _draw_requests(options, results, measured, f"{subtitle}, {load.output_len} tokens out")
    return 0 if measured["completed"] else 1


# ---- throughput and latency


async def _throughput(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    load = _offline_load(options, options.num_prompts, options.prefix_len)
    engine = await _started(options, loader)
    try:
        with _progress(options, load.num_prompts) as bar:
            results, duration = await generate_all(engine, load, lambda result: _count(bar, result))
        measured = {
            **_about("throughput", engine.model_name),
            "input_len": load.input_len,
            "output_len": load.output_len,
            "prefix_len": load.prefix_len,
            "seed": load.seed,
            **throughput_figures(results, duration),
        }
    finally:
        await engine.stop()
    _tell(options, measured, table(measured, "Throughput Benchmark Result"))
    size = f"{load.prefix_len + load.input_len} tokens in, {load.output_len} out"
    _draw_requests(options, results, measured, f"{load.num_prompts} prompts, {size}")
    return 0 if measured["completed"] else 1


async def _latency(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    engine = await _started(options, loader)
    batches = []
    try:
        with _progress(options, options.iterations) as bar:
            for number in range(-options.warmup, options.iterations):
                load = _offline_load(options, options.batch_size, 0, seed=options.seed + number)
                batch = await generate_all(engine, load)
                if number >= 0:
                    batches.append(batch)
                    bar.update()
        model = engine.model_name
    finally:
        await engine.stop()
    measured = {
        **_about("latency", model),
        "batch_size": options.batch_size,
        "input_len": options.input_len,
        "output_len": options.output_len,
        "seed": options.seed,
        **latency_figures(batches),
    }
    lines = [f"{' Latency Benchmark Result ':=^{WIDTH}}", row("Batch size:", options.batch_size)]
    lines += [row("Mean latency of a batch (s):", measured["avg_latency"]), row("Least (s):", measured["min_latency"])]
    lines += [row(f"P{name} (s):", seconds) for name, seconds in measured["percentiles"].items()]
    lines += [row("Output token throughput (tok/s):", measured["output_throughput"])]
    lines += [row(f"Mean {name.upper()} (ms):", measured[f"mean_{name}_ms"]) for name in ("ttft", "tpot")]
    _tell(options, measured, "\n".join([*lines, "=" * WIDTH]))
    size = f"{options.batch_size} prompts of {options.input_len} tokens, {options.output_len} out"
    subtitle = f"batches of {size} · mean {measured['avg_latency']:.3f} s"
    _draw(options, lambda title: plot_batches(measured["latencies"], title, subtitle), measured)
    return 0 if measured["completed"] else 1


def _offline_load(
    options: argparse.Namespace, num_prompts: int, prefix_len: int, seed: int | None = None
) -> OfflineLoad:
    return OfflineLoad(
        num_prompts=num_prompts,
        input_len=options.input_len,
        prefix_len=prefix_len,
        output_len=options.output_len,
        temperature=options.temperature,
        seed=options.seed if seed is None else seed,
    )


async def _started(options: argparse.Namespace, loader: ModelLoader | None) -> Engine:
    progress = LoadingProgress()
    engine = Engine(engine_config(options), loader=loader, report=progress)
    with interruptible_by_the_system():
        try:
            await engine.start()
        finally:
            progress.close()
    return engine


# ---- startup


def _startup(options: argparse.Namespace) -> int:
    arguments = [*([options.model] if options.model else []), *shlex.split(options.serve_args)]
    arguments += ["--revision", options.revision] if options.revision else []
    starts: list[Start] = []
    with _progress(options, options.starts) as bar:
        for number in range(-options.warmup, options.starts):
            start = measure_start(arguments, options.api_key)
            if number >= 0:
                starts.append(start)
                bar.update()
    measured = {**_about("startup", options.model or "the default model"), **startup_figures(starts)}
    lines = [f"{' Startup Benchmark Result ':=^{WIDTH}}", row("Starts:", len(starts))]
    for name, label in (("ready_seconds", "until ready"), ("first_token_seconds", "until the first token")):
        lines += [
            row(f"Mean {label} (s):", measured[f"mean_{name}"]),
            row(f"Least {label} (s):", measured[f"min_{name}"]),
        ]
    lines.append(f"{'Mean of each part':-^{WIDTH}}")
    lines += [row(f"{part} (s):", seconds) for part, seconds in measured["parts_seconds"].items()]
    _tell(options, measured, "\n".join([*lines, "=" * WIDTH]))
    subtitle = f"{len(starts)} starts · first token after {measured['mean_first_token_seconds']:.2f} s on average"
    _draw(options, lambda title: plot_starts(starts, title, subtitle), measured)
    return 0


# ---- what all share


def _about(benchmark: str, model: str) -> Figures:
    return {
        "benchmark": benchmark,
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "limelight_version": __version__,
        "model_id": model,
    }


def _fields(load: ServingLoad) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__struct_fields__}


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextmanager
def _progress(options: argparse.Namespace, total: int) -> Iterator[tqdm]:
    """A bar on a terminal that was not told to be quiet."""
    with tqdm(total=total, disable=options.quiet or not sys.stderr.isatty(), dynamic_ncols=True) as bar:
        yield bar


def _count(bar: tqdm, result: RequestResult) -> None:
    bar.update()
    if result.error is not None:
        bar.set_postfix_str("some have failed", refresh=False)


def _tell(options: argparse.Namespace, measured: Figures, shown: str) -> None:
    """Prints the table, or JSON instead where that goes to standard output; then the first errors."""
    text = json.dumps(measured, indent=1)
    if options.json == "-":
        print(text)
    else:
        print(printable(shown))
        if options.json is not None:
            Path(options.json).write_text(f"{text}\n", encoding="utf-8")
    errors: dict[str, int] = measured.get("errors", {})
    for error, count in list(errors.items())[:SHOWN_ERRORS]:
        say(printable(f"failed: {error}{f' ({count} times)' if count > 1 else ''}"))
    if len(errors) > SHOWN_ERRORS:
        say(f"failed: {len(errors) - SHOWN_ERRORS} other kinds of errors, in --json")


def _draw_requests(options: argparse.Namespace, results: list[RequestResult], measured: Figures, subtitle: str) -> None:
    told = f"{measured['output_throughput']:.1f} output tokens/s · TTFT {measured['mean_ttft_ms']:.0f} ms"
    subtitle = f"{subtitle} · {told} · TPOT {measured['mean_tpot_ms']:.1f} ms"
    _draw(options, lambda title: plot_requests(results, measured["duration"], title, subtitle), measured)


def _draw(options: argparse.Namespace, draw: Callable[[str], Drawing], measured: Figures) -> None:
    if options.plot is not None:
        write_plot(draw(f"limelight bench {measured['benchmark']}: {measured['model_id']}"), options.plot)
