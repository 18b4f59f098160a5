"""`limelight bench`: runs what was asked for, prints the figures, writes them as JSON and as a picture."""

import argparse
import shlex
from typing import Any

from tqdm import tqdm

from limelight.bench.figures import WIDTH, figures, row, table
from limelight.bench.offline import OfflineLoad, generate_all, latency_figures, throughput_figures
from limelight.bench.plots.runs import plot_batches, plot_passes, plot_starts
from limelight.bench.serving import ServingLoad, drive, started_server
from limelight.bench.startup import Start, measure_start, startup_figures
from limelight.bench.target import Target, chosen_model
from limelight.cli.bench_output import about, check_output, count_result, draw, draw_requests, progress_bar, tell
from limelight.cli.event_loop import run
from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.settings import engine_config
from limelight.cli.terminal import interruptible_by_the_system, say
from limelight.engine import Engine, ModelLoader
from limelight.errors import ConfigError

DEFAULT_CONCURRENCY = 8


def bench(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """Runs one benchmark; 1 if nothing was completed.

    Raises:
        LimelightError: options that do not go together, nothing answers, or the model cannot be loaded.
    """
    check_output(options)
    if options.benchmark == "serve":
        return _serve(options)
    if options.benchmark == "throughput":
        return run(_throughput(options, loader))
    if options.benchmark == "latency":
        return run(_latency(options, loader))
    return _startup(options) if options.benchmark == "startup" else _kernels(options, loader)


# ---- serve


def _serve(options: argparse.Namespace) -> int:
    concurrency = options.concurrency or (None if options.request_rate else DEFAULT_CONCURRENCY)
    names = {name: getattr(options, name) for name in ServingLoad.__struct_fields__ if hasattr(options, name)}
    load = ServingLoad(**{**names, "concurrency": concurrency, "timeout_seconds": options.timeout})
    load.prompts()  # a tokenizer that cannot be read is told before a server is started
    if not options.start_server:
        if options.serve_args:
            raise ConfigError("--serve-args are for the server of --start-server; add that, or leave them out")
        return run(_drive(options, load, Target.parse(options.base_url, options.api_key)))
    with started_server(shlex.split(options.serve_args)) as base_url:
        return run(_drive(options, load, Target.parse(base_url, options.api_key)))


async def _drive(options: argparse.Namespace, load: ServingLoad, target: Target) -> int:
    model = chosen_model(target, options.model)
    if options.warmup:
        changed = {"num_prompts": options.warmup, "seed": load.seed + 1, "request_rate": None}
        await drive(target, model, ServingLoad(**{**_fields(load), **changed}), lambda _: None)
    with progress_bar(options, load.num_prompts) as bar:
        results, duration = await drive(target, model, load, lambda result: count_result(bar, result))
    measured = {
        **about("serve", model),
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
    tell(options, measured, table(measured, "Serving Benchmark Result", options.percentiles))
    if measured["num_estimated"]:
        say("the server tells no usage: prompts are counted as they were asked for, and an event as one token")
    at_once = f"{load.concurrency} at once" if load.concurrency else "no limit at once"
    rate = f", {load.request_rate:g} sent per second" if load.request_rate else ""
    subtitle = (
        f"{load.num_prompts} requests, {at_once}{rate}, {load.prefix_len + load.input_len} {measured['prompt_kind']} in"
    )
    draw_requests(options, results, measured, f"{subtitle}, {load.output_len} tokens out")
    return 0 if measured["completed"] else 1


# ---- throughput and latency


async def _throughput(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    load = _offline_load(options, options.num_prompts, options.prefix_len)
    engine = await _started(options, loader)
    try:
        with progress_bar(options, load.num_prompts) as bar:
            results, duration = await generate_all(engine, load, lambda result: count_result(bar, result))
        measured = {
            **about("throughput", engine.model_name),
            "input_len": load.input_len,
            "output_len": load.output_len,
            "prefix_len": load.prefix_len,
            "seed": load.seed,
            **throughput_figures(results, duration),
        }
    finally:
        await engine.stop()
    tell(options, measured, table(measured, "Throughput Benchmark Result"))
    size = f"{load.prefix_len + load.input_len} tokens in, {load.output_len} out"
    draw_requests(options, results, measured, f"{load.num_prompts} prompts, {size}")
    return 0 if measured["completed"] else 1


async def _latency(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    engine = await _started(options, loader)
    batches = []
    try:
        with progress_bar(options, options.iterations) as bar:
            for number in range(-options.warmup, options.iterations):
                load = _offline_load(options, options.batch_size, 0, seed=options.seed + options.warmup + number)
                batch = await generate_all(engine, load)
                if number >= 0:
                    batches.append(batch)
                    bar.update()
        model = engine.model_name
    finally:
        await engine.stop()
    measured = {
        **about("latency", model),
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
    tell(options, measured, "\n".join([*lines, "=" * WIDTH]))
    size = f"{options.batch_size} prompts of {options.input_len} tokens, {options.output_len} out"
    subtitle = f"batches of {size} · mean {measured['avg_latency']:.3f} s"
    draw(options, lambda title: plot_batches(measured["latencies"], title, subtitle), measured)
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
    with progress_bar(options, options.starts) as bar:
        for number in range(-options.warmup, options.starts):
            start = measure_start(arguments, options.api_key)
            if number >= 0:
                starts.append(start)
                bar.update()
    measured = {**about("startup", options.model or "the default model"), **startup_figures(starts)}
    lines = [f"{' Startup Benchmark Result ':=^{WIDTH}}", row("Starts:", len(starts))]
    for name, label in (("ready_seconds", "until ready"), ("first_token_seconds", "until the first token")):
        lines += [
            row(f"Mean {label} (s):", measured[f"mean_{name}"]),
            row(f"Least {label} (s):", measured[f"min_{name}"]),
        ]
    lines.append(f"{'Mean of each part':-^{WIDTH}}")
    lines += [row(f"{part} (s):", seconds) for part, seconds in measured["parts_seconds"].items()]
    tell(options, measured, "\n".join([*lines, "=" * WIDTH]))
    subtitle = f"{len(starts)} starts · first token after {measured['mean_first_token_seconds']:.2f} s on average"
    draw(options, lambda title: plot_starts(starts, title, subtitle), measured)
    return 0


# ---- kernels


def _kernels(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    from limelight.bench import kernels  # imports the models

    progress = LoadingProgress()
    with progress_bar(options, len(kernels.DECODE_ROWS) + len(kernels.PREFILL_ROWS) + 1) as bar:
        try:
            found = kernels.kernel_figures(
                engine_config(options),
                progress,
                options.context,
                options.repeats,
                lambda: _passed(bar, progress),
                loader,
            )
        finally:
            progress.close()
    measured = {**about("kernels", found["model_id"]), **found}
    lines = [f"{' Kernels Benchmark Result ':=^{WIDTH}}", *kernels.lines(measured), "=" * WIDTH]
    tell(options, measured, "\n".join(lines))
    roof = f"{found['memory_gb_per_second']:.1f} GB/s, {found['product_gop_per_second']:.0f} Gop/s int8"
    subtitle = f"{found['variant']}, {found['num_threads']} threads, context {found['context']} · {roof}"
    draw(options, lambda title: plot_passes(found["passes"], title, subtitle), measured)
    return 0


def _passed(bar: tqdm, progress: LoadingProgress) -> None:
    progress.close()
    bar.update()


def _fields(load: ServingLoad) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__struct_fields__}
