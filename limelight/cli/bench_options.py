"""The options of `limelight bench`, one command for each thing that can be measured."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limelight.cli.option_groups import engine_options, model_options

DESCRIPTION = """\
Measure a server, the engine without a server, the start, or the kernels. Results have the names of `vllm bench`.
"""

SERVE_EXAMPLES = """\
examples:
  limelight bench serve --start-server --input-len 128 --output-len 64 --concurrency 8
  limelight bench serve --base-url http://127.0.0.1:8000 --request-rate 4 --goodput ttft:500 tpot:50
  limelight bench serve --endpoint chat --base-url http://127.0.0.1:8080 --json result.json --plot run.svg

Prompts are random tokens, exactly --input-len of them. A chat takes text: --input-len random words then, which is about
as many tokens; with --tokenizer exactly as many, but for what the chat template adds. The figures count what the server
says it read. The wait for a free place of --concurrency is in no latency.

Exit code: 1 if not one request was completed.
"""

THROUGHPUT_EXAMPLES = """\
examples:
  limelight bench throughput --num-prompts 64
  limelight bench throughput ./my-model --input-len 512 --output-len 128 --max-num-seqs 16 --plot run.svg
"""

LATENCY_EXAMPLES = """\
examples:
  limelight bench latency --batch-size 8
  limelight bench latency ./my-model --batch-size 1 --iterations 20 --json -
"""

KERNELS_EXAMPLES = """\
examples:
  limelight bench kernels
  limelight bench kernels ./my-model --context 4096 --max-num-batched-tokens 512 --json -

Times the operations of decode steps with 1, 8 and 32 rows and of prefills with 128, 512 and 2,048 tokens (in several
steps where --max-num-batched-tokens is less), each as the fastest of --repeats. The roof is measured in the same run,
before and after: memory that all threads read, and the int8 product of one matrix that stays in the cache. Products
take at least the time to read all weights, or to multiply; attention that to read what it sees (in a prefill it
computes far longer, and has no roof here). On a machine that others use, too, the roof may come out too low.

Few rows are multiplied with weights as they are packed, more with weights that are unpacked once for all of them. Up to
how many rows the first is faster, is fixed; what one thread measures here is printed beside it.
"""

STARTUP_EXAMPLES = """\
examples:
  limelight bench startup
  limelight bench startup ./my-model --starts 5 --plot starts.svg

Each start is a new process, `limelight serve` with --serve-args. The files of the model are in the system's cache from
the second start on, and usually from the first.
"""


def bench_commands(commands: Any, environment: Mapping[str, str], formatter: type[argparse.HelpFormatter]) -> None:
    """Adds `bench` with its own commands to the program's; `environment` has the default of `--api-key`."""
    parser = commands.add_parser(
        "bench",
        help="measure a server, the engine, the start, or the kernels",
        description=DESCRIPTION,
        formatter_class=formatter,
    )
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)

    def add(name: str, summary: str, examples: str, fill: Callable[[argparse.ArgumentParser], None]) -> None:
        own = benchmarks.add_parser(
            name,
            help=summary[0].lower() + summary[1:-1],
            description=summary,
            epilog=examples,
            formatter_class=formatter,
        )
        own.allow_abbrev = False
        fill(own)
        _output_options(own)
        own.set_defaults(api_key=environment.get("LIMELIGHT_API_KEY"))

    add("serve", "Drive an OpenAI-compatible server and measure its streams.", SERVE_EXAMPLES, _serve_options)
    add("throughput", "Run many prompts through the engine in this process.", THROUGHPUT_EXAMPLES, _throughput_options)
    add("latency", "Run one batch of prompts again and again in this process.", LATENCY_EXAMPLES, _latency_options)
    add("startup", "Time the start of a server to its first token.", STARTUP_EXAMPLES, _startup_options)
    add("kernels", "Time the operations of a recorded pass, by kind.", KERNELS_EXAMPLES, _kernels_options)


def _serve_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("server")
    where.add_argument(
        "--base-url", default="http://127.0.0.1:8000", metavar="URL", help="address, with /v1 or without"
    )
    where.add_argument("--model", "-m", metavar="NAME", help="default: the first one that the server lists")
    where.add_argument(
        "--api-key", metavar="KEY", help="sent with every request. Default: the variable LIMELIGHT_API_KEY"
    )
    where.add_argument(
        "--endpoint",
        choices=("completions", "chat"),
        default="completions",
        help="what to ask: /v1/completions or chat",
    )
    where.add_argument("--start-server", action="store_true", help="start `limelight serve` for this run")
    where.add_argument(
        "--serve-args",
        default="",
        metavar="ARGS",
        help="MODEL and options of that server, in one string: 'm.gguf --dtype float32'",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--prompt-kind", choices=("tokens", "words"), help="what prompts are made of. Default: tokens; words for a chat"
    )
    load.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json (or its folder) that words are counted by")
    _prompt_options(load, num_prompts=32)
    load.add_argument(
        "--concurrency",
        "--max-concurrency",
        type=_count,
        metavar="N",
        help="requests on their way at once. Default: 8; with --request-rate no limit",
    )
    load.add_argument(
        "--request-rate", type=_positive, metavar="R", help="requests sent per second. Default: each as soon as it may"
    )
    load.add_argument(
        "--burstiness",
        type=_positive,
        default=1.0,
        metavar="B",
        help="of the times between requests: 1 is a Poisson process, less comes in bursts, more evenly",
    )
    load.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let every output have --output-len tokens. Default: on; off, the field is not sent, as some servers want",
    )
    load.add_argument(
        "--warmup",
        "--num-warmups",
        type=_count_or_none,
        default=1,
        metavar="N",
        help="requests before the clock starts",
    )
    load.add_argument(
        "--timeout", type=_positive, default=600.0, metavar="SECONDS", help="after which a request has failed"
    )
    results = parser.add_argument_group("results")
    results.add_argument(
        "--goodput",
        nargs="+",
        type=_goodput,
        default=[],
        metavar="NAME:MS",
        help="count requests that keep these limits in milliseconds: ttft:200 tpot:30 e2el:2000",
    )
    results.add_argument(
        "--percentiles",
        "--metric-percentiles",
        type=_percentiles,
        default=(99.0,),
        metavar="P,P",
        help="percentiles to tell beside mean and median: 50,90,99. Default: 99",
    )


def _throughput_options(parser: argparse.ArgumentParser) -> None:
    model_options(parser)
    _prompt_options(parser.add_argument_group("load"), num_prompts=64)
    engine_options(parser)


def _latency_options(parser: argparse.ArgumentParser) -> None:
    model_options(parser)
    load = parser.add_argument_group("load")
    load.add_argument("--batch-size", type=_count, default=8, metavar="N", help="prompts in a batch")
    load.add_argument("--iterations", "--num-iters", type=_count, default=10, metavar="N", help="batches to time")
    load.add_argument(
        "--warmup",
        "--num-iters-warmup",
        type=_count_or_none,
        default=1,
        metavar="N",
        help="batches before the clock starts",
    )
    _length_options(load)
    engine_options(parser)


def _startup_options(parser: argparse.ArgumentParser) -> None:
    model_options(parser)
    parser.add_argument("--starts", type=_count, default=3, metavar="N", help="how often to start")
    parser.add_argument(
        "--warmup",
        type=_count_or_none,
        default=1,
        metavar="N",
        help="starts before those that count, to fill the caches of the disk",
    )
    parser.add_argument(
        "--serve-args", default="", metavar="ARGS", help="further options of `limelight serve`, in one string"
    )


def _kernels_options(parser: argparse.ArgumentParser) -> None:
    model_options(parser)
    parser.add_argument("--context", type=_count, default=128, metavar="N", help="tokens before a decoded one")
    parser.add_argument("--repeats", type=_count, default=10, metavar="N", help="how often each step is timed")
    engine_options(parser)


def _prompt_options(group: Any, *, num_prompts: int) -> None:
    group.add_argument("--num-prompts", type=_count, default=num_prompts, metavar="N", help="requests in all")
    _length_options(group)
    group.add_argument(
        "--prefix-len",
        "--random-prefix-len",
        type=_count_or_none,
        default=0,
        metavar="N",
        help="tokens that all prompts share, before --input-len of their own",
    )


def _length_options(group: Any) -> None:
    group.add_argument(
        "--input-len", "--random-input-len", type=_count, default=128, metavar="N", help="tokens of a prompt"
    )
    group.add_argument(
        "--output-len", "--random-output-len", type=_count, default=64, metavar="N", help="tokens of an output"
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token")
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of prompts and times: the same ones every time"
    )


def _output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", metavar="FILE", help="write the figures as JSON; - for standard output instead of the table"
    )
    group.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the run: .svg, or .png with the package resvg-py"
    )
    group.add_argument("--quiet", action="store_true", help="no progress bar (there is none away from a terminal)")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _count_or_none(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _goodput(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text!r} limits nothing; write ttft:MS, tpot:MS or e2el:MS, as in ttft:200")
    return name, _positive(limit)


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (-1.0,)
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} are no percentiles; write 50,90,99")
    return values
