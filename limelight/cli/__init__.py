"""The program `limelight`: serve, chat, generate, models, doctor, keys, run-batch, replay, bench.

Every expected failure is one line on stderr and an exit code.

Exit codes: 0 done, 1 it failed (a model, a port), 2 the options are wrong, 130 interrupted. `replay` has its own.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from limelight.cli.options import build_parser
from limelight.cli.terminal import as_options
from limelight.errors import ConfigError, InvalidRequest, LimelightError

if TYPE_CHECKING:
    from limelight.engine import ModelLoader

INTERRUPTED = 130
BROKEN_PIPE = 141
SPIN_COUNT = "5000"
"""Rounds for which torch's OpenMP threads spin before they sleep. By default that takes milliseconds, and where other
processes use the cores, it takes them from the very thread that is waited for. Fewer rounds cost more than they save on
an idle machine (docs/log.md has both)."""

SWITCH_SECONDS = 0.0005
"""After which a thread that waits for the interpreter gets it. By default that is 5 ms, for which the model would wait
at each step while the event loop tells the last one's tokens."""


def main(arguments: Sequence[str] | None = None, loader: "ModelLoader | None" = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        arguments: the program's own unless given.
        loader: what loads the model, as for `Engine`; for programs that bring their own.
    """
    options = build_parser(os.environ).parse_args(arguments)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read once, when torch is loaded
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return _run(options, loader)
    except (ConfigError, InvalidRequest) as error:
        _complain(error)
        return 2
    except LimelightError as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). Nothing can be written any more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Standard output leads to a full disk, most likely; what is buffered cannot be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"limelight: {error.strerror}: the output, or a download, found no space left", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, loader: "ModelLoader | None") -> int:
    # Imported only now: `limelight --help` answers at once, and so does a name that is wrong.
    if options.command == "keys":
        from limelight.cli.keys import keys

        return keys(options)
    if options.command == "replay":
        from limelight.cli.replay import replay_file

        return replay_file(options, loader)
    drives_a_server = options.command == "bench" and options.benchmark == "serve"
    if loader is None and not drives_a_server and options.command != "doctor":  # which has an answer of its own
        from limelight.cli.names import check_names

        check_names(options)
    if options.command == "serve":
        from limelight.cli.serve import serve

        return serve(options, loader)
    if options.command == "models":
        from limelight.cli.models import models

        return models(options)
    if options.command == "doctor":
        from limelight.cli.doctor import doctor

        return doctor(options)
    if options.command == "run-batch":
        from limelight.cli.run_batch import run_batch

        return run_batch(options, loader)
    if options.command == "bench":
        from limelight.cli.bench import bench

        return bench(options, loader)
    from limelight.cli.chat import chat, generate

    return chat(options, loader) if options.command == "chat" else generate(options, loader)


def _complain(error: LimelightError) -> None:
    print(f"limelight: {as_options(str(error))}", file=sys.stderr)
