"""What all of `limelight bench` puts out: bar, table, JSON, picture."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from limelight import __version__
from limelight.bench.figures import Figures
from limelight.bench.plots.drawing import Drawing, check_plot, write_plot
from limelight.bench.plots.runs import plot_requests
from limelight.bench.request_result import RequestResult
from limelight.cli.terminal import printable, say
from limelight.errors import ConfigError

SHOWN_ERRORS = 3


def check_output(options: argparse.Namespace) -> None:
    """Looks before a run whether its results can be written.

    Raises:
        ConfigError: `--plot` or `--json` cannot be.
    """
    if options.plot is not None:
        check_plot(options.plot)
    if options.json not in (None, "-") and not Path(options.json).absolute().parent.is_dir():
        raise ConfigError(f"--json {options.json}: there is no folder {Path(options.json).absolute().parent}")


def about(benchmark: str, model: str) -> Figures:
    """What stands first in every result."""
    return {
        "benchmark": benchmark,
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "limelight_version": __version__,
        "model_id": model,
    }


@contextmanager
def progress_bar(options: argparse.Namespace, total: int) -> Iterator[tqdm]:
    """A bar on a terminal that was not told to be quiet."""
    with tqdm(total=total, disable=options.quiet or not sys.stderr.isatty(), dynamic_ncols=True) as bar:
        yield bar


def count_result(bar: tqdm, result: RequestResult) -> None:
    """One more request has ended."""
    bar.update()
    if result.error is not None:
        bar.set_postfix_str("some have failed", refresh=False)


def tell(options: argparse.Namespace, measured: Figures, shown: str) -> None:
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


def draw_requests(options: argparse.Namespace, results: list[RequestResult], measured: Figures, subtitle: str) -> None:
    """Draws a run of requests where `--plot` asks for it."""
    told = f"{measured['output_throughput']:.1f} output tokens/s · TTFT {measured['mean_ttft_ms']:.0f} ms"
    subtitle = f"{subtitle} · {told} · TPOT {measured['mean_tpot_ms']:.1f} ms"
    draw(options, lambda title: plot_requests(results, measured["duration"], title, subtitle), measured)


def draw(options: argparse.Namespace, make: Callable[[str], Drawing], measured: Figures) -> None:
    """Draws, under the title that all pictures have, where `--plot` asks for it."""
    if options.plot is not None:
        write_plot(make(f"limelight bench {measured['benchmark']}: {measured['model_id']}"), options.plot)
