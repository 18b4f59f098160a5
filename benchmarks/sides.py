"""The runtimes that `compare.py` measures, each in a process of its own: one that is called, or one that serves."""

import asyncio
import functools
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from limelight.bench.arrivals import run_all
from limelight.bench.client import send
from limelight.bench.serving import ServingLoad
from limelight.bench.target import Target, chosen_model

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 300.0
END_SECONDS = 10.0
PROMPT = [1000, 2000, 3000, 4000, 5000]
"""What the first token is asked for with."""


@dataclass(frozen=True)
class Run:
    """What became of prompts that were given together.

    Attributes:
        seconds: to the last token of all.
        ttft_seconds, tpot_seconds: means over the prompts; no TPOT of outputs of one token.
    """

    seconds: float
    ttft_seconds: float
    tpot_seconds: float
    num_tokens: int

    @classmethod
    def of(cls, first: Sequence[float], last: Sequence[float], num_tokens: Sequence[float]) -> "Run":
        """From times of first and last tokens, one entry per prompt."""
        tpots = [(end - begin) / max(count - 1, 1) for begin, end, count in zip(first, last, num_tokens, strict=True)]
        return cls(max(last), sum(first) / len(first), sum(tpots) / len(tpots), int(sum(num_tokens)))


class Side(Protocol):
    """A running runtime. `start_seconds`: from the start of its process to its first token."""

    name: str
    start_seconds: float

    def generate(self, prompts: Sequence[Sequence[int]], output_len: int) -> Run:
        """Continues all prompts together by `output_len` tokens each."""
        ...

    def resident_bytes(self) -> int:
        """Memory that its process holds now."""
        ...

    def close(self) -> None:
        """Ends the process."""
        ...


class SideFailed(Exception):
    """A runtime does not start, or does not do what it was asked for."""


class ProcessSide:
    """A runtime that is called in its process, through `peers/protocol.py`.

    Raises:
        SideFailed: it does not start.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        started = time.perf_counter()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.name = name
        try:
            self.name = f"{name} {json.loads(self._line())['version']}"
            self.generate([PROMPT], 1)
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - started

    def generate(self, prompts: Sequence[Sequence[int]], output_len: int) -> Run:
        """See `Side`."""
        assert self._process.stdin is not None
        task = {"prompts": [list(prompt) for prompt in prompts], "output_len": output_len}
        try:
            print(json.dumps(task), file=self._process.stdin, flush=True)
        except OSError:
            raise SideFailed(f"{self.name} has ended; its own words stand above") from None
        result = json.loads(self._line())
        if set(result["num_tokens"]) != {output_len}:
            raise SideFailed(f"{self.name} gave {result['num_tokens']} tokens instead of {output_len} each")
        return Run.of(result["first_seconds"], result["last_seconds"], result["num_tokens"])

    def resident_bytes(self) -> int:
        """See `Side`."""
        return resident_bytes(self._process.pid)

    def close(self) -> None:
        """See `Side`."""
        end(self._process)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideFailed(f"{self.name} has ended; its own words stand above")
        return line


class ServerSide:
    """A runtime that serves the OpenAI API on `port`.

    Raises:
        SideFailed: it does not start, or gives no token within five minutes.
    """

    def __init__(self, name: str, command: Sequence[str], port: int) -> None:
        started = time.perf_counter()
        self.name = name
        # A pipe that stays open: a child that reads to its end lives as long as this process.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT)
        self._target = Target("127.0.0.1", port)
        self._model = ""
        try:
            self._wait_for_answers(started + START_SECONDS)
            self._model = chosen_model(self._target, None)
            self.generate([PROMPT], 1)
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - started

    def generate(self, prompts: Sequence[Sequence[int]], output_len: int) -> Run:
        """See `Side`."""
        load = ServingLoad(output_len=output_len)

        async def together() -> Run:
            bodies = [load.body(self._model, list(prompt)) for prompt in prompts]
            sends = [functools.partial(send, self._target, path, body, None) for path, body in bodies]
            results, _ = await run_all(sends, [0.0] * len(sends), None, lambda _: None)
            for result in results:
                if result.error is not None:
                    raise SideFailed(f"{self.name}: {result.error}")
            return Run.of(
                [result.ttft_seconds for result in results],
                [result.latency_seconds for result in results],
                [result.num_output_tokens for result in results],
            )

        return asyncio.run(together())

    def resident_bytes(self) -> int:
        """See `Side`."""
        return resident_bytes(self._process.pid)

    def close(self) -> None:
        """See `Side`."""
        end(self._process)

    def _wait_for_answers(self, until: float) -> None:
        while not self._answers():
            if self._process.poll() is not None or time.perf_counter() > until:
                raise SideFailed(f"{self.name} does not serve; its own words stand above")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._target.url}/v1/models", timeout=5) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and of its children, such as the workers of a server."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                lines = (folder / "status").read_text().splitlines()
            except OSError:
                continue  # it has ended meanwhile
            if int(folder.name) == pid or int(stat[1]) == pid:
                total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    return total


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Ends a process, kindly at first."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
