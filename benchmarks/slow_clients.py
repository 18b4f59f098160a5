"""What clients that are slow, silent or torn off do to somebody else's stream, and what they cost in memory.

    python -m benchmarks.slow_clients --seconds 8 --json slow_clients.json

`limelight serve` in a process of its own, over a scripted model whose steps take five milliseconds, serves one stream
without an end. For each kind of client the time between its tokens is measured without them, with them, and without
them again. Clients that ask for streams and do not read them are compared with as many that do.
"""

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SERVER = """
import sys
from limelight.cli import main
from limelight.testing import scripted_model
raise SystemExit(main(sys.argv[1:], loader=scripted_model(
    lambda turn: 97, step_seconds=0.005, max_model_len=1 << 20, num_pages=1 << 18)))
"""
NUM_STREAMS = 8
SETTLE_SECONDS = 2.0


class Measured(NamedTuple):
    """One kind of client.

    Attributes:
        num_clients: connections of that kind, at once or in all.
        mean_ms, p99_ms: between two tokens of the stream beside them.
        usual_mean_ms, usual_p99_ms: the same without them, or beside as many that read.
        grown_kib: of the server's memory while they were there.
    """

    kind: str
    num_clients: int
    mean_ms: float
    p99_ms: float
    usual_mean_ms: float
    usual_p99_ms: float
    grown_kib: int


class Server:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        self.port = int(process.stdout.readline().rpartition(":")[2])

    def rss_kib(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1])


def request(**fields: Any) -> bytes:
    """A chat request."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **fields}
    content = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


STREAM = request(stream=True, max_tokens=500_000)


async def gaps(port: int, seconds: float) -> list[float]:
    """Milliseconds between the frames of a stream that is read at once, without the first second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(STREAM)
    found: list[float] = []
    begun = last = time.perf_counter()
    try:
        while (now := time.perf_counter()) - begun < seconds + 1:
            await reader.readuntil(b"\n\n")
            now, before = time.perf_counter(), last
            last = now
            if before - begun >= 1:
                found.append(1e3 * (now - before))
    finally:
        writer.close()
    return found


Crowd = Callable[[int], Coroutine[Any, Any, None]]
"""Does its worst at a port until cancelled."""


async def idle(port: int) -> None:
    """Says nothing."""
    async with _open(port, 1000):
        await asyncio.sleep(3600)


async def slow_heads(port: int) -> None:
    """A byte of a request's head a second."""
    async with _open(port, 300) as opened:
        for letter in b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 3600:
            for _, writer in opened:
                writer.write(bytes([letter]))
            await asyncio.sleep(1)


async def slow_uploads(port: int) -> None:
    """A byte of a request's body a second."""
    async with _open(port, 100) as opened:
        for _, writer in opened:
            writer.write(STREAM[:-60].replace(b"Content-Length: ", b"Content-Length: 9"))
        for letter in STREAM[-60:] * 60:
            for _, writer in opened:
                writer.write(bytes([letter]))
            await asyncio.sleep(1)


async def torn_off(port: int) -> None:
    """Fifty connections a second that end in the middle of something."""
    number = 0
    while True:
        number += 1
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(STREAM[: number * 7 % (len(STREAM) + 50)])
        writer.close()
        await asyncio.sleep(0.02)


async def no_http(port: int) -> None:
    """Fifty handshakes of TLS a second."""
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))
        await asyncio.sleep(0.02)
        writer.close()


async def readers(port: int) -> None:
    """Streams that are read."""
    async with _open(port, NUM_STREAMS) as opened:
        for _, writer in opened:
            writer.write(STREAM)
        await asyncio.gather(*(_read_all(reader) for reader, _ in opened))


async def never_read(port: int) -> None:
    """Streams that nobody reads."""
    async with _open(port, NUM_STREAMS, limit=1) as opened:
        for _, writer in opened:
            writer.write(STREAM)
        await asyncio.sleep(3600)


async def a_byte_a_second(port: int) -> None:
    """Streams that are read byte by byte."""
    async with _open(port, NUM_STREAMS, limit=1) as opened:
        for _, writer in opened:
            writer.write(STREAM)
        while True:
            await asyncio.gather(*(reader.read(1) for reader, _ in opened))
            await asyncio.sleep(1)


CROWDS: dict[str, tuple[Crowd, int, Crowd | None]] = {
    "1,000 idle": (idle, 1000, None),
    "300 slow heads": (slow_heads, 300, None),
    "100 slow uploads": (slow_uploads, 100, None),
    "50 torn off a second": (torn_off, 50, None),
    "50 TLS handshakes a second": (no_http, 50, None),
    "8 that never read": (never_read, NUM_STREAMS, readers),
    "8 that read a byte a second": (a_byte_a_second, NUM_STREAMS, readers),
}
"""Names -> who, how many, and who they are compared with."""


@contextlib.asynccontextmanager
async def _open(
    port: int, number: int, limit: int = 2**16
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    opened = [await asyncio.open_connection("127.0.0.1", port, limit=limit) for _ in range(number)]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        pass


async def beside(port: int, crowd: Crowd | None, seconds: float) -> list[float]:
    """The gaps of a stream beside `crowd`."""
    if crowd is None:
        return await gaps(port, seconds)
    task = asyncio.create_task(crowd(port))
    try:
        await asyncio.sleep(SETTLE_SECONDS)
        return await gaps(port, seconds)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await task


async def measure(server: Server, seconds: float) -> list[Measured]:
    """All kinds, one after the other."""
    results = []
    await gaps(server.port, 2)
    for kind, (crowd, number, compared) in CROWDS.items():
        usual = await beside(server.port, compared, seconds)
        before = server.rss_kib()
        task_gaps = await beside(server.port, crowd, seconds)
        grown = server.rss_kib() - before
        usual += await beside(server.port, compared, seconds)
        result = Measured(kind, number, *_summary(task_gaps), *_summary(usual), grown)
        results.append(result)
        _print(result)
    return results


def _summary(found: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(found), statistics.quantiles(found, n=100)[98]


def _print(result: Measured) -> None:
    ratio, each = result.mean_ms / result.usual_mean_ms, result.grown_kib / result.num_clients
    print(
        f"{result.kind:28} mean {result.mean_ms:6.2f} ms ({ratio:.3f} x {result.usual_mean_ms:.2f}), "
        f"p99 {result.p99_ms:6.2f} ({result.usual_p99_ms:.2f}), memory {each:+.1f} KiB each",
        flush=True,
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    command = [sys.executable, "-c", SERVER, "serve", "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            results = asyncio.run(measure(Server(process), options.seconds))
        finally:
            process.terminate()
    if options.json:
        options.json.write_text(json.dumps([result._asdict() for result in results], indent=1))


if __name__ == "__main__":
    main()
