"""What requests that are meant to hurt do to somebody else's stream: the worst lag of the event loop meanwhile.

    python -m benchmarks.hostile --json hostile.json

A real server over a scripted model, whose steps take five milliseconds, serves one stream without an end. Meanwhile a
thread sends forms, templates and bodies from the suite's own sets, one after the other. After each the worst lag of the
loop since the one before is noted: how much later than it wanted a task woke that sleeps a millisecond at a time.
"""

import argparse
import asyncio
import gc
import http.client
import importlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limelight.cli import SWITCH_SECONDS
from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine

TICK_SECONDS = 0.001
SETTLE_SECONDS = 0.05
KINDS = ("schema", "template", "body")
HI = [{"role": "user", "content": "hi"}]


class Case(NamedTuple):
    """A request that is meant to hurt."""

    kind: str
    name: str
    path: str
    body: bytes


class Outcome(NamedTuple):
    """What became of it: HTTP status, seconds until the answer, and the loop's worst lag meanwhile."""

    kind: str
    name: str
    status: int
    seconds: float
    worst_lag_ms: float


class LagProbe:
    """The worst lag of the event loop since it was last asked."""

    def __init__(self) -> None:
        self._worst = 0.0

    async def run(self) -> None:
        """Sleep and look at the clock, until cancelled."""
        while True:
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._worst = max(self._worst, time.perf_counter() - due)

    def take(self) -> float:
        """In milliseconds."""
        worst, self._worst = self._worst, 0.0
        return 1e3 * worst


def cases() -> Iterator[Case]:
    """All of them."""
    chat = "/v1/chat/completions"
    forms: dict[str, Any] = importlib.import_module("tests.hostile_forms").SCHEMAS
    for name, schema in forms.items():
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield Case("schema", name, chat, _chat(response_format=wanted, max_tokens=8))
    limits = importlib.import_module("tests.models.text.test_chat_template_limits")
    for name, template in {**limits.ENDLESS, **limits.LARGE}.items():
        yield Case("template", name, chat, _chat(chat_template=template, max_tokens=8))
    for name, body in _bodies():
        yield Case("body", name, chat, body)
    bodies = importlib.import_module("tests.http.hostile_bodies")
    for path in bodies.MAIN:
        for name, body in bodies.all_bodies(path):
            yield Case("body", f"{path} {name}", path, body)


def _chat(**fields: Any) -> bytes:
    return json.dumps({"model": "scripted", "messages": HI, **fields}).encode()


def _bodies() -> Iterator[tuple[str, bytes]]:
    yield "a million brackets", b"[" * 1_000_000
    yield "nested objects", b'{"a":' * 100_000
    yield "nested messages", b'{"model": "scripted", "messages": ' + b"[" * 500_000
    yield "10,000 messages", _chat(messages=HI * 10_000, max_tokens=8)
    yield "100,000 messages", _chat(messages=HI * 100_000, max_tokens=8)
    yield "a million parts", _chat(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 200_000}])
    yield "9 MB of one letter", _chat(messages=[{"role": "user", "content": "x" * 9_000_000}], max_tokens=8)
    yield "3 MB of accents", _chat(messages=[{"role": "user", "content": "e\u0301" * 300_000}], max_tokens=8)
    yield "control characters", _chat(messages=[{"role": "user", "content": "\0\x1b\x7f" * 100_000}], max_tokens=8)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    tools = [{**tool, "function": {"name": f"f{number}", "parameters": {"type": "object"}}} for number in range(3000)]
    yield "3,000 tools", _chat(tools=tools, tool_choice="required", max_tokens=8)
    yield "a long name of a tool", _chat(tools=[{**tool, "function": {"name": "n" * 200_000}}])
    arguments = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * 200_000}}
    yield "arguments of brackets", _chat(messages=[*HI, {"role": "assistant", "tool_calls": [arguments]}, *HI])
    yield "huge numbers", b'{"model": "scripted", "messages": [], "seed": ' + b"9" * 200_000 + b"}"
    yield "many unknown fields", _chat(**{f"field{number}": number for number in range(50_000)})
    yield "many stops", _chat(stop=["x" * 1000] * 16, max_tokens=8)
    yield "a large bias", _chat(logit_bias={str(number): 1 for number in range(1024)}, max_tokens=8)
    yield "bad words", _chat(bad_words=[f"word{number}" for number in range(128)], max_tokens=8)


def send(port: int, case: Case) -> tuple[int, float]:
    """Status and seconds until the whole answer is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    started = time.perf_counter()
    try:
        connection.request("POST", case.path, case.body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status, time.perf_counter() - started
    finally:
        connection.close()


def read_stream(port: int, ended: threading.Event) -> None:
    """Somebody else's stream, one after the other."""
    body = json.dumps({"model": "scripted", "messages": HI, "stream": True, "max_tokens": 400}).encode()
    while not ended.is_set():
        send(port, Case("", "", "/v1/chat/completions", body))


async def measure(kinds: Sequence[str]) -> list[Outcome]:
    """The cases of these kinds, one after the other, beside one stream."""
    wire = importlib.import_module("tests.http.wire")
    engine = scripted_engine(lambda turn: 97, step_seconds=0.005, max_model_len=1 << 16, num_pages=1 << 13)
    app = create_app(engine, settings=HttpSettings(trust_request_chat_template=True))
    probe, ended, outcomes = LagProbe(), threading.Event(), []
    prepared = [case for case in cases() if case.kind in kinds]
    gc.freeze()  # this and the next as `limelight serve` does
    sys.setswitchinterval(SWITCH_SECONDS)
    async with engine, wire.running_server(app) as port:
        ticking = asyncio.create_task(probe.run())
        reading = asyncio.create_task(asyncio.to_thread(read_stream, port, ended))
        await asyncio.sleep(1)
        probe.take()
        try:
            for case in prepared:
                status, seconds = await asyncio.to_thread(send, port, case)
                await asyncio.sleep(SETTLE_SECONDS)
                outcomes.append(Outcome(case.kind, case.name, status, seconds, probe.take()))
        finally:
            ended.set()
            ticking.cancel()
            await reading
    return outcomes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all outcomes here")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="which of them (default: all)")
    arguments = parser.parse_args()
    outcomes = asyncio.run(measure(arguments.kinds))
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = sorted((entry for entry in outcomes if entry.kind == kind), key=lambda entry: -entry.worst_lag_ms)
        lags = [entry.worst_lag_ms for entry in of_kind]
        print(f"{kind}: {len(of_kind)} requests, median lag {lags[len(lags) // 2]:.1f} ms, worst {lags[0]:.1f} ms")
        for entry in of_kind[:5]:
            print(f"  {entry.worst_lag_ms:7.1f} ms  {entry.status}  {entry.seconds:6.2f} s  {entry.name}")
    failed = [entry.name for entry in outcomes if entry.status >= 500]
    print(f"answered with a fault of the server: {', '.join(failed) or 'none'}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([entry._asdict() for entry in outcomes], indent=1))


if __name__ == "__main__":
    main()
