"""The options of `limelight run-batch`; file names as in `vllm run-batch`."""

import argparse
from typing import Any

from limelight.cli.option_groups import MODEL_HELP, adapter_options, engine_options
from limelight.cli.telemetry_options import export_options

DESCRIPTION = """\
Answer a file of requests without a server: the engine runs in this process, and every field means what it means
over HTTP.
"""

EXAMPLES = """\
examples:
  limelight run-batch requests.jsonl                   answers go to requests.output.jsonl
  limelight run-batch -i requests.jsonl -o answers.jsonl --model ./my-model
  limelight run-batch requests.jsonl --retry-failed    once more for those that have failed

FILE has one JSON object per line, as for OpenAI's Batch API (NAME is the model's name, printed at the start):
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
   "body": {"model": "NAME", "messages": [{"role": "user", "content": "Hello"}]}}

Answers stand in the order in which they complete. What ends the run early, Ctrl-C or anything else, costs the answers
in hand: the same command goes on where it stopped. A line that cannot be answered becomes a line with its error.

Exit code: 0 if every line has been answered, failures included; 1 if the run ended early, or not one answer is good.
"""


def batch_command(commands: Any, formatter: type[argparse.HelpFormatter]) -> None:
    """Adds `run-batch` to the program's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run-batch",
        help="answer a file of requests",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the requests, one JSON object per line")
    parser.add_argument("--input-file", "-i", metavar="FILE", help="the same as FILE")
    parser.add_argument(
        "--output-file",
        "-o",
        metavar="FILE",
        help="where answers are added, one JSON object per line. Default: the input's name, ending in .output.jsonl",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="remove failures of an earlier run from the output, and try again"
    )
    parser.add_argument("--model", "-m", metavar="MODEL", help=f"{MODEL_HELP} Default: SmolLM2-135M-Instruct")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id")
    engine_options(parser)
    adapter_options(parser)
    export_options(parser)
