"""Drives an OpenAI-compatible server with N streams at once and prints what `vllm bench serve` prints, under its names.

    python benchmarks/serve.py --base-url http://127.0.0.1:8000 --num-prompts 64 --concurrency 8
    python benchmarks/serve.py --start-server --input-len 128 --output-len 64

Prompts are random tokens (or random words), drawn by `--seed`, so that no prefix is shared; `ignore_eos` makes every
output exactly `--output-len` tokens. It talks plain HTTP/1.1 over sockets and costs the server's machine little.
"""

import argparse
import asyncio
import json
import random
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
FIRST_TOKEN, LAST_TOKEN = 1000, 30000
"""Range of random token ids: above the special tokens and bytes, below the vocabularies of usual models."""


@dataclass(slots=True)
class Result:
    """One stream. Seconds since it was sent; `error` is set if it failed."""

    ttft: float = 0.0
    latency: float = 0.0
    gaps: list[float] = field(default_factory=list)
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server."""

    host: str
    port: int
    prefix: str
    secure: bool
    api_key: str | None

    @classmethod
    def parse(cls, base_url: str, api_key: str | None) -> "Target":
        """The server at `base_url`, with or without `/v1` at its end."""
        url = urllib.parse.urlsplit(base_url)
        secure = url.scheme == "https"
        if url.hostname is None:
            raise SystemExit(f"{base_url!r} is no address; write http://127.0.0.1:8000")
        prefix = url.path.rstrip("/").removesuffix("/v1")
        return cls(url.hostname, url.port or (443 if secure else 80), prefix, secure, api_key)

    def headers(self) -> str:
        """What every request carries."""
        key = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        return f"host: {self.host}:{self.port}\r\nconnection: close\r\n{key}"


async def stream_once(target: Target, path: str, body: dict[str, Any]) -> Result:
    """Sends one request and reads its stream to the end."""
    result = Result()
    encoded = json.dumps(body).encode()
    head = (
        f"POST {target.prefix}{path} HTTP/1.1\r\n{target.headers()}"
        f"content-type: application/json\r\ncontent-length: {len(encoded)}\r\n\r\n"
    )
    context = ssl.create_default_context() if target.secure else None
    started = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
    except OSError as error:
        result.error = str(error)
        return result
    try:
        writer.write(head.encode() + encoded)
        await _read_stream(reader, result, started)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        result.error = f"{type(error).__name__}: {error}"
    finally:
        writer.close()
    return result


async def _read_stream(reader: asyncio.StreamReader, result: Result, started: float) -> None:
    last = started
    finished = False
    async for line in _lines(reader):
        if not line.startswith(b"data:"):
            continue
        if line == b"data: [DONE]":
            finished = True
            break
        now = time.perf_counter()
        event = json.loads(line[5:])
        if "error" in event:
            raise ValueError(event["error"].get("message", "error"))
        if usage := event.get("usage"):
            result.num_input_tokens = usage["prompt_tokens"]
            result.num_output_tokens = usage["completion_tokens"]
        if any(_brings_tokens(choice) for choice in event["choices"]):
            if result.ttft:
                result.gaps.append(now - last)
            else:
                result.ttft = now - started
            last = now
    if not finished:
        raise ValueError("the stream ended without [DONE]")
    result.latency = last - started


def _brings_tokens(choice: dict[str, Any]) -> bool:
    """Not so the first frame of a chat, which only names the role. The last one may end with tokens without text."""
    delta = choice.get("delta", choice)
    return bool(delta.get("text") or delta.get("content") or choice.get("finish_reason"))


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of the body of a response, chunked or not.

    Raises:
        ValueError: the status is not 200; the message holds the body.
    """
    status = await reader.readline()
    chunked = False
    while (header := await reader.readline()) not in (b"\r\n", b""):
        chunked = chunked or header.lower().replace(b" ", b"") == b"transfer-encoding:chunked\r\n"
    if status.split(b" ")[1:2] != [b"200"]:
        rest = await reader.read(2000)
        raise ValueError(f"{status.decode('latin-1').strip()}: {rest.decode(errors='replace').strip()}")
    pending = b""
    while piece := await (_chunk(reader) if chunked else reader.read(65536)):
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readline()).split(b";")[0], 16)
    return (await reader.readexactly(size + 2))[:-2]


def prompts(options: argparse.Namespace) -> list[Any]:
    """Random prompts of exactly `--input-len` token ids, or about as many words."""
    draw = random.Random(options.seed)
    if options.prompt_kind == "words":
        return [" ".join(draw.choices(WORDS, k=options.input_len)) for _ in range(options.num_prompts)]
    return [draw.choices(range(FIRST_TOKEN, LAST_TOKEN), k=options.input_len) for _ in range(options.num_prompts)]


def request_body(options: argparse.Namespace, model: str, prompt: Any) -> tuple[str, dict[str, Any]]:
    """Path and body of one request."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": options.temperature,
        "ignore_eos": True,
    }
    if options.endpoint == "chat":
        return "/v1/chat/completions", body | {
            "messages": [{"role": "user", "content": prompt}],
            "max_completion_tokens": options.output_len,
        }
    return "/v1/completions", body | {"prompt": prompt, "max_tokens": options.output_len}


async def run(options: argparse.Namespace, target: Target, model: str) -> dict[str, Any]:
    """Runs all prompts, `--concurrency` at a time, and returns the figures."""
    jobs = iter([request_body(options, model, prompt) for prompt in prompts(options)])
    results: list[Result] = []
    with tqdm(total=options.num_prompts, disable=options.quiet) as bar:

        async def stream_after_stream() -> None:
            for path, body in jobs:
                results.append(await stream_once(target, path, body))
                bar.update()

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(options.concurrency, options.num_prompts)):
                group.create_task(stream_after_stream())
        duration = time.perf_counter() - started
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "model_id": model,
        "num_prompts": options.num_prompts,
        "max_concurrency": options.concurrency,
        "input_len": options.input_len,
        "output_len": options.output_len,
        "seed": options.seed,
        **figures(results, duration),
    }


def figures(results: Sequence[Result], duration: float) -> dict[str, Any]:
    """Figures by the names of `vllm bench serve`; times in milliseconds, throughput per second.

    TTFT is the time to the first text, TPOT the rest of the latency divided by the tokens after the first, ITL the time
    between two frames with text, E2EL the whole latency.
    """
    done = [result for result in results if result.error is None]
    num_input = sum(result.num_input_tokens for result in done)
    num_output = sum(result.num_output_tokens for result in done)
    out: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(results) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / duration,
        "output_throughput": num_output / duration,
        "total_token_throughput": (num_input + num_output) / duration,
        "errors": sorted({result.error for result in results if result.error is not None}),
    }
    samples = {
        "ttft": [result.ttft for result in done],
        "tpot": [
            (result.latency - result.ttft) / (result.num_output_tokens - 1)
            for result in done
            if result.num_output_tokens > 1
        ],
        "itl": [gap for result in done for gap in result.gaps],
        "e2el": [result.latency for result in done],
    }
    for name, seconds in samples.items():
        milliseconds = np.array(seconds or [0.0]) * 1000
        out[f"mean_{name}_ms"] = float(np.mean(milliseconds))
        out[f"median_{name}_ms"] = float(np.median(milliseconds))
        out[f"std_{name}_ms"] = float(np.std(milliseconds))
        out[f"p99_{name}_ms"] = float(np.percentile(milliseconds, 99))
    return out


def table(figures: dict[str, Any]) -> str:
    """The figures as text, worded as `vllm bench serve` does."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]
    lines += [
        f"{label:<40} {figures[name]:<10.2f}"
        if isinstance(figures[name], float)
        else f"{label:<40} {figures[name]:<10}"
        for label, name in (
            ("Successful requests:", "completed"),
            ("Failed requests:", "failed"),
            ("Maximum request concurrency:", "max_concurrency"),
            ("Benchmark duration (s):", "duration"),
            ("Total input tokens:", "total_input_tokens"),
            ("Total generated tokens:", "total_output_tokens"),
            ("Request throughput (req/s):", "request_throughput"),
            ("Output token throughput (tok/s):", "output_throughput"),
            ("Total token throughput (tok/s):", "total_token_throughput"),
        )
    ]
    for name, title in (
        ("ttft", "Time to First Token"),
        ("tpot", "Time per Output Token (excl. 1st token)"),
        ("itl", "Inter-token Latency"),
        ("e2el", "End-to-end Latency"),
    ):
        lines.append(f"{title:-^50}")
        for kind, label in (("mean", "Mean"), ("median", "Median"), ("p99", "P99")):
            lines.append(f"{f'{label} {name.upper()} (ms):':<40} {figures[f'{kind}_{name}_ms']:<10.2f}")
    return "\n".join([*lines, "=" * 50])


def served_model(target: Target) -> str:
    """The first model that the server lists."""
    scheme = "https" if target.secure else "http"
    request = urllib.request.Request(f"{scheme}://{target.host}:{target.port}{target.prefix}/v1/models")
    if target.api_key:
        request.add_header("authorization", f"Bearer {target.api_key}")
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


@contextmanager
def started_server(arguments: Sequence[str]) -> Iterator[str]:
    """A `limelight serve` of our own on a free port; yields its address, and ends it."""
    command = [sys.executable, "-c", "from limelight.cli import main; raise SystemExit(main())", "serve", "--port", "0"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = next((line for line in server.stdout if " open " in line), None)
            if line is None:
                raise SystemExit("the server did not start")
            yield line.rpartition(" ")[2].strip()
        finally:
            server.terminate()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--start-server", action="store_true", help="start `limelight serve` for this run")
    parser.add_argument("--serve-args", default="", help="further arguments of that server, in one string")
    parser.add_argument("--model", help="default: the first one that the server lists")
    parser.add_argument("--api-key")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument("--prompt-kind", choices=("tokens", "words"), help="default: tokens; words for chat")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=8, help="streams at once")
    parser.add_argument("--input-len", type=int, default=128, help="tokens (or words) of a prompt")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of an output")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-warmups", type=int, default=1, help="streams before the clock starts")
    parser.add_argument("--save-result", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    options.prompt_kind = options.prompt_kind or ("words" if options.endpoint == "chat" else "tokens")
    if options.endpoint == "chat" and options.prompt_kind == "tokens":
        parser.error("--endpoint chat takes --prompt-kind words: messages are text")
    return options


def measure(options: argparse.Namespace, base_url: str) -> dict[str, Any]:
    """Warm-up, then the measured run."""
    target = Target.parse(base_url, options.api_key)
    model = options.model or served_model(target)
    if options.num_warmups:
        quiet = {"quiet": True, "num_prompts": options.num_warmups, "seed": options.seed + 1}
        asyncio.run(run(argparse.Namespace(**{**vars(options), **quiet}), target, model))
    return asyncio.run(run(options, target, model))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.start_server:
        with started_server(options.serve_args.split()) as base_url:
            measured = measure(options, base_url)
    else:
        measured = measure(options, options.base_url)
    print(table(measured))
    for error in measured["errors"]:
        print(f"failed: {error}", file=sys.stderr)
    if options.save_result is not None:
        options.save_result.write_text(json.dumps(measured, indent=1) + "\n")
    return 1 if measured["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
