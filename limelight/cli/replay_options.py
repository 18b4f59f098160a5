"""The options of `limelight replay`."""

import argparse
from typing import Any

from limelight.cli.option_groups import MODEL_HELP
from limelight.cli.settings import device, memory_bytes
from limelight.config import CPU_KERNELS, DTYPES, QUANTIZATIONS

DESCRIPTION = """\
Run a recorded request again, step by step, and name the first token that comes out otherwise. FILE is a replay bundle,
which a server with --record-dir writes of requests that were sent with `x-record: 1` and an admin key.

The model is loaded with the settings of the recording; the options below change them, to find out what made the
difference.
"""

EXAMPLES = """\
examples:
  limelight replay records/rec-chatcmpl-0a1b.replay.json           alone, in the recorded chunks
  limelight replay FILE --as-scheduled                             with neighbours of the recorded lengths
  limelight replay FILE --cpu-kernels portable --json              the same on other kernels, for a program

Exit code: 0 every token is the same, 1 one is not, 2 the bundle cannot be run here.
"""


def replay_command(commands: Any, formatter: type[argparse.HelpFormatter]) -> None:
    """Adds `replay` to the program's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="run a recorded request again, and find the first difference",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("file", metavar="FILE", help="the replay bundle")
    parser.add_argument(
        "--as-scheduled",
        action="store_true",
        help="let the requests that shared its steps take part, in their lengths; their content is not recorded",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    group = parser.add_argument_group("engine", "Whatever is left out is as it was recorded.")
    group.add_argument("--model", "-m", metavar="MODEL", help=f"{MODEL_HELP} Default: the recorded one")
    group.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id")
    group.add_argument("--lora", dest="adapter_path", metavar="PATH", help="where the request's LoRA adapter is")
    group.add_argument("--device", type=device, metavar="DEVICE", help="where to compute: cpu, cuda, cuda:1 or auto")
    group.add_argument("--dtype", choices=DTYPES, help="what to compute in")
    group.add_argument("--cpu-kernels", choices=CPU_KERNELS, help="what computes on the CPU")
    group.add_argument("--num-threads", type=int, metavar="N", help="threads that compute on the CPU")
    group.add_argument("--quantize", choices=QUANTIZATIONS, help="what weights are kept in")
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences that run at once")
    group.add_argument(
        "--kv-cache-memory",
        type=memory_bytes,
        dest="kv_cache_bytes",
        metavar="SIZE",
        help="memory for keys and values: 512MiB, 2GiB or bytes",
    )
