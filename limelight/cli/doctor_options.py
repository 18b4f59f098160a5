"""The options of `limelight doctor`."""

import argparse
from collections.abc import Callable
from typing import Any

from limelight.cli.option_groups import MODEL_HELP, inspection_options, model_as_option

EXAMPLES = """\
examples:
  limelight doctor                              would `limelight serve` work here, with what, and what is missing
  limelight doctor Qwen/Qwen3-0.6B              the same for a model; of one that is not here the headers are fetched
  limelight doctor ./model.gguf --port 8080 --json

Nothing is downloaded, kept or changed, and nothing hangs. What is printed has no keys, no values of variables and no
host names, so it can go into a bug report as it is. Exit code: 0 if the model would be served, else 1.
"""


def doctor_command(commands: Any, formatter: type[argparse.HelpFormatter], port: Callable[[str], int]) -> None:
    """Adds `doctor` to the program's commands; `port` reads one."""
    parser = commands.add_parser(
        "doctor",
        help="what this machine offers, what would run where, and what is missing",
        description="Tell what this machine offers, what would run on it, and what is missing.",
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP} Default: SmolLM2-135M-Instruct")
    model_as_option(parser)
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id")
    parser.add_argument("--host", default="127.0.0.1", help="address that the server would listen on")
    parser.add_argument("--port", type=port, default=8000, help="port that has to be free; 0 for any")
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    inspection_options(parser)
