"""The options of `limelight keys`."""

import argparse
from pathlib import Path
from typing import Any

from limelight.http.keys.key_file import SCOPES

EXAMPLES = """\
examples:
  limelight keys add keys.json team-a                        prints the key, once
  limelight keys add keys.json ops --scope observe --scope admin
  limelight keys add keys.json guest --model SmolLM2-135M-Instruct --max-num-requests 4 --best-priority 0
  limelight keys add keys.json batch --weight 0.5 --tokens-per-minute 60000 --burst-tokens 20000
  limelight keys list keys.json
  limelight keys remove keys.json guest
  limelight serve --key-file keys.json                       reads the file anew within a second of a change

The file has hashes of the keys, never the keys, and only its owner can read it.
"""


def keys_command(commands: Any, formatter: type[argparse.HelpFormatter]) -> None:
    """Adds `keys` to the program's commands."""
    parser = commands.add_parser(
        "keys",
        help="API keys in a file, with scopes and limits",
        description="Change a file of API keys, which `limelight serve --key-file` reads.",
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = _action(actions, "add", "make a key and print it, once", formatter)
    add.add_argument("name", metavar="NAME", help="of its principal: what logs, metrics and traces show")
    add.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help="what it may: use models (infer), see everybody's numbers (observe), change what is served and end "
        "requests of others (admin); repeat it for more. Default: infer",
    )
    add.add_argument("--model", action="append", metavar="MODEL", help="a model or adapter it may use. Default: all")
    add.add_argument("--max-num-requests", type=int, metavar="N", help="its live requests; one more is a 429")
    add.add_argument("--best-priority", type=int, metavar="N", help="lowest priority value it may ask for")
    add.add_argument("--weight", type=float, default=1.0, metavar="W", help="of its share where keys compete")
    add.add_argument(
        "--tokens-per-minute",
        type=float,
        metavar="N",
        help="its quota: tokens of prompts, cached ones not counted, and of output; beyond it requests are a 429",
    )
    add.add_argument(
        "--burst-tokens", type=float, metavar="N", help="what of it may be used at once. Default: a minute's tokens"
    )
    add.add_argument("--private-cache", action="store_true", help="share cached prefixes with nobody else's requests")
    _action(actions, "list", "what is in the file", formatter)
    remove = _action(actions, "remove", "let a key in no longer", formatter)
    remove.add_argument("name", metavar="NAME", help="of the key's principal")


def _action(actions: Any, name: str, summary: str, formatter: type[argparse.HelpFormatter]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=formatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the key file")
    return parser
