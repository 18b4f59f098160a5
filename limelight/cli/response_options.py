"""The options of `serve` about stored responses."""

import argparse

from limelight.cli.settings import memory_bytes


def response_options(parser: argparse.ArgumentParser) -> None:
    """How many responses of `/v1/responses` are kept, in how much memory, and for how long."""
    group = parser.add_argument_group("stored responses")
    group.add_argument(
        "--max-stored-responses",
        type=int,
        default=10_000,
        metavar="N",
        help="responses of /v1/responses that are kept in memory, the newest; 0 keeps none",
    )
    group.add_argument(
        "--response-store-memory",
        type=memory_bytes,
        default="256MiB",
        metavar="SIZE",
        help="memory that they may take: 512MiB, 2GiB or bytes",
    )
    group.add_argument(
        "--response-max-age", type=float, default=86400.0, metavar="SECONDS", help="how long each is kept"
    )
