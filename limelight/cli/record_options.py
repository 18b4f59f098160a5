"""The options of `serve` about replay bundles."""

import argparse

from limelight.cli.settings import memory_bytes


def record_options(parser: argparse.ArgumentParser) -> None:
    """Where bundles go, how many there may be, and in how much space."""
    group = parser.add_argument_group("replay bundles")
    group.add_argument(
        "--record-dir",
        metavar="FOLDER",
        help="write replay bundles of requests that ask for one (x-record: 1, admin keys only) into this folder; they "
        "hold prompts and answers. Default: none are written",
    )
    group.add_argument(
        "--max-records", type=int, default=1000, metavar="N", help="bundles that are kept; the oldest are removed"
    )
    group.add_argument(
        "--max-record-size",
        type=memory_bytes,
        dest="max_record_bytes",
        default="1GiB",
        metavar="SIZE",
        help="space that all of them may take: 512MiB, 2GiB or bytes",
    )
