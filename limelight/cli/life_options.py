"""The options of `serve` about its end, and about what stands still before."""

import argparse

from limelight.cli.option_types import seconds, whole_seconds


def life_options(parser: argparse.ArgumentParser) -> None:
    """How long ends may take, and what is given up."""
    group = parser.add_argument_group("life")
    group.add_argument(
        "--drain-timeout",
        type=whole_seconds,
        default=30,
        metavar="SECONDS",
        help="how long running requests may go on after Ctrl-C or SIGTERM",
    )
    group.add_argument(
        "--drain-notice",
        type=whole_seconds,
        default=0,
        metavar="SECONDS",
        help="before that: how long requests are still taken while /readyz says no, so that load balancers notice",
    )
    group.add_argument(
        "--step-timeout",
        type=seconds,
        dest="step_timeout_seconds",
        metavar="SECONDS",
        help="a step that takes longer, and ten times the longest so far, will never end: the server gives up with "
        "exit code 1; 0: wait for ever. Default: 600",
    )
    group.add_argument(
        "--loop-stall",
        type=seconds,
        default=5.0,
        metavar="SECONDS",
        help="log what holds the event loop when it has stood still for so long; 0: do not watch it",
    )
