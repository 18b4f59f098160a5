"""`limelight bench startup`: from the start of the process to the first token, with its parts, in fresh processes.

The measured process is a whole `limelight serve`; it writes a line on standard error where a part begins.
"""

import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from limelight.bench.figures import Figures
from limelight.bench.serving import END_SECONDS
from limelight.bench.target import BenchmarkFailed, Target, chosen_model

MARK = "limelight-bench-startup "
SERVE = (sys.executable, "-m", "limelight.bench.startup_child", "--port", "0")
FIRST_PART = "Python and the command line"
LAST_PARTS = ("opening the server", "first token")


class Start(msgspec.Struct, frozen=True):
    """One start.

    Attributes:
        ready_seconds: until the address was told, which is when the server answers.
        first_token_seconds: until the first token of the first request.
        parts: seconds of each part of that, in order.
    """

    ready_seconds: float
    first_token_seconds: float
    parts: dict[str, float]


def mark(part: str) -> None:
    """Says in the measured process that `part` begins."""
    print(f"{MARK}{time.time()!r} {part}", file=sys.stderr, flush=True)


def measure_start(arguments: Sequence[str], api_key: str | None = None, command: Sequence[str] = SERVE) -> Start:
    """Starts a server, asks it for one token, and ends it.

    Args:
        arguments: of `limelight serve`.
        api_key: what its environment makes it ask for.
        command: what starts the server and marks its parts.

    Raises:
        BenchmarkFailed: it did not start, or gave no token; the message holds its last words.
    """
    marks = [(time.time(), FIRST_PART)]
    with subprocess.Popen(  # noqa: S603 (our own command)
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            ready = time.time()
            if ": open http" in line:
                _ask_for_a_token(Target.parse(line.rpartition(" ")[2].strip(), api_key))
                answered = time.time()
        finally:
            server.terminate()
            try:
                _, errors = server.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                _, errors = server.communicate()
    if ": open http" not in line:
        told = [line for line in errors.splitlines() if not line.startswith(MARK)]
        raise BenchmarkFailed(f"the server did not start: {told[-1] if told else f'exit code {server.returncode}'}")
    for line in errors.splitlines():
        if line.startswith(MARK):
            at, _, part = line.removeprefix(MARK).partition(" ")
            marks.append((float(at), part))
    marks += [(ready, LAST_PARTS[1]), (answered, "")]
    parts: dict[str, float] = {}
    for (begin, part), (end, _) in itertools.pairwise(marks):
        parts[part] = parts.get(part, 0.0) + end - begin
    return Start(ready - marks[0][0], answered - marks[0][0], parts)


def startup_figures(starts: Sequence[Start]) -> Figures:
    """Mean, median and least seconds of `starts`, and the mean of each part."""
    out: dict[str, Any] = {"num_starts": len(starts)}
    for name in ("ready_seconds", "first_token_seconds"):
        seconds = [getattr(start, name) for start in starts]
        out[f"mean_{name}"] = float(np.mean(seconds))
        out[f"median_{name}"] = float(np.median(seconds))
        out[f"min_{name}"] = min(seconds)
        out[name] = seconds
    names = dict.fromkeys(part for start in starts for part in start.parts)
    out["parts_seconds"] = {part: float(np.mean([start.parts.get(part, 0.0) for start in starts])) for part in names}
    return out


def _ask_for_a_token(target: Target) -> None:
    body = {"model": chosen_model(target, None), "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    headers = {"content-type": "application/json", "authorization": f"Bearer {target.api_key}"}
    request = urllib.request.Request(  # noqa: S310 (our own server)
        f"{target.url}/v1/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            response.read()
    except OSError as error:
        raise BenchmarkFailed(f"the server started, and its first request failed: {error}") from None
