"""The server that `soak.py` drives: `limelight serve` in a process of its own, and what can be seen of it from outside.

    python -m benchmarks.soak_server --step-ms 5 -- OPTIONS OF limelight serve

As a program it serves a scripted model whose steps take so long.
"""

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.sides import ROOT, SideFailed, free_port
from limelight.cli import main as limelight
from limelight.testing.model import scripted_model
from limelight.testing.script import babble

START_SECONDS = 300.0
IDLE = (
    "limelight_live_requests",
    "limelight_running_sequences",
    "limelight_waiting_sequences",
    "limelight_kv_pages_used",
)
"""Gauges that are 0 when nothing is left of any request."""


class Sample(NamedTuple):
    """The process at one moment.

    Attributes:
        seconds: since the server was started.
    """

    seconds: float
    resident_bytes: int
    num_descriptors: int
    num_threads: int


class SoakServer:
    """A running server; `log` has what it wrote.

    Raises:
        SideFailed: it does not start.
    """

    def __init__(self, options: Sequence[str], keys: dict[str, str], step_ms: float | None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        program = ["-m", "limelight", "serve"]
        if step_ms is not None:
            program = ["-m", "benchmarks.soak_server", "--step-ms", str(step_ms), "--"]
        named = [argument for name, key in keys.items() for argument in ("--api-key", f"{name}={key}")]
        self.log = Path(tempfile.mkstemp(prefix="soak-", suffix=".log")[1])
        self._key = next(iter(keys.values()))
        self._began = time.monotonic()
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, *program, "--port", str(self.port), *named, *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )
        self._wait_for_answers()
        self.model: str = self.get("/v1/models")["data"][0]["id"]

    def get(self, path: str) -> Any:
        """The JSON at `path`."""
        return json.loads(self._read(path))

    def gauges(self) -> dict[str, float]:
        """Those of `IDLE`, now."""
        text = self._read("/metrics").decode()
        numbers = re.findall(r"^(\w+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in numbers if name in IDLE}

    def sample(self) -> Sample:
        """What the operating system says of the process."""
        process = Path(f"/proc/{self._process.pid}")
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
        return Sample(
            time.monotonic() - self._began,
            int(status["VmRSS"].split()[0]) * 1024,
            sum(1 for _ in (process / "fd").iterdir()),
            int(status["Threads"]),
        )

    def descriptors(self) -> Counter[str]:
        """What the open files of the process are, sockets and the like by their kind."""
        kinds: Counter[str] = Counter()
        for entry in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                kinds[entry.readlink().as_posix().partition(":[")[0]] += 1
        return kinds

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it has not ended after `seconds`, and is killed."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None

    def faults(self) -> list[str]:
        """Lines of the log that tell of a bug."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"Traceback|\b(ERROR|CRITICAL)\b|never (awaited|retrieved)", line)]

    def _read(self, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self._key}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())

    def _wait_for_answers(self) -> None:
        while time.monotonic() < self._began + START_SECONDS and self._process.poll() is None:
            try:
                self._read("/readyz")
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.1)
            else:
                return
        self._process.kill()
        raise SideFailed(f"the server does not start: {self.log.read_text(errors='replace')[-2000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the scripted model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, required=True, metavar="MS", help="how long a step takes")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="of limelight serve, after --")
    options = parser.parse_args(arguments)
    loader = scripted_model(babble, num_pages=2048, max_model_len=8192, step_seconds=options.step_ms / 1000)
    return limelight(["serve", *options.serve], loader=loader)


if __name__ == "__main__":
    raise SystemExit(main())
