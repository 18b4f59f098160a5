"""The options of `serve` about connections: how many, how slow, how large."""

import argparse

from limelight.cli.option_types import at_least_one, seconds_above_0, whole_seconds
from limelight.cli.settings import memory_bytes


def connection_options(parser: argparse.ArgumentParser) -> None:
    """What a client may cost before it is answered, and while it reads."""
    group = parser.add_argument_group("connections")
    group.add_argument(
        "--max-connections",
        type=at_least_one,
        default=4096,
        metavar="N",
        help="open at once: one more takes the place of an idle one, or is answered with 503",
    )
    group.add_argument(
        "--head-timeout",
        type=seconds_above_0,
        default=30.0,
        metavar="SECONDS",
        help="how long a client may take to send request line and headers",
    )
    group.add_argument(
        "--body-timeout",
        type=seconds_above_0,
        default=30.0,
        metavar="SECONDS",
        help="how long a client may take to send a body, beside what --min-body-rate grants",
    )
    group.add_argument(
        "--min-body-rate",
        type=memory_bytes,
        default="4KiB",
        metavar="SIZE",
        help="each such part of a body grants one second more for the rest",
    )
    group.add_argument(
        "--body-memory",
        type=memory_bytes,
        default="512MiB",
        metavar="SIZE",
        help="what the bodies of all requests in hand may take, of each what is above 64 KiB; one more is a 503",
    )
    group.add_argument(
        "--send-timeout",
        type=seconds_above_0,
        default=120.0,
        metavar="SECONDS",
        help="a client that takes nothing of its answer for so long is cut off",
    )
    group.add_argument(
        "--timeout-keep-alive",
        type=whole_seconds,
        default=120,
        metavar="SECONDS",
        help="how long a connection without a request is kept: longer than clients and proxies keep theirs for reuse",
    )
