"""Sections of `gpu_check` that serve: a whole server under many streams, and another engine on the same work."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from benchmarks.gpu_model import MODELS, Machine, executor_of, random_model
from benchmarks.loop import drive
from limelight.cli.listening import bind
from limelight.cli.options import build_parser
from limelight.cli.serve import http_settings
from limelight.cli.server import Server
from limelight.config import EngineConfig
from limelight.engine import Engine
from limelight.models.captured.loading import Ready
from limelight.models.loaded_model import LoadedModel
from limelight.progress import Report
from limelight.step import Step, StepExecutor, StepResult
from limelight.testing import babble, scripted_model

STREAMS, OUTPUT_TOKENS, PEER_STREAMS, PEER_TOKENS = 256, 128, 64, 128


class Watched:
    """A `StepExecutor` that notes when a step of many sequences found the device idle, and for how long."""

    def __init__(self, executor: StepExecutor, at_least: int) -> None:
        self._executor = executor
        self._at_least = at_least
        self._num_submitted = 0  # each of these two is counted by one thread
        self._num_done = 0
        self._ended_at: float | None = None
        self.gaps: list[float] = []

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """See `StepExecutor`."""
        wait = self._executor.submit(step)
        now = time.perf_counter()
        if len(step.chunks) >= self._at_least and self._ended_at is not None:
            self.gaps.append(0.0 if self._num_submitted > self._num_done else now - self._ended_at)
        self._num_submitted += 1

        def watched() -> StepResult:
            result = wait()
            self._ended_at = time.perf_counter()
            self._num_done += 1
            return result

        return watched

    def put_masks(self, step_number: int, masks: Any) -> None:
        """See `StepExecutor`."""
        self._executor.put_masks(step_number, masks)

    def close(self) -> None:
        """See `StepExecutor`."""
        self._executor.close()


def server_section(machine: Machine) -> dict[str, Any]:
    """Streams over HTTP from a client in a process of its own, two steps in flight."""
    streams, output = (2, 3) if machine.is_dry else (STREAMS, OUTPUT_TOKENS)
    spec, model = random_model(machine, "Llama-3-8B")
    ready = executor_of(machine, spec, model, max_num_seqs=streams, max_num_batched_tokens=2048)
    watched = Watched(ready.executor, at_least=max(streams // 2, 1))
    options = argparse.Namespace(streams=streams, output_len=output)
    figures = asyncio.run(_serve(ready, watched, options))
    gaps = np.array(watched.gaps or [0.0]) * 1000
    return {
        "output_throughput": figures["output_throughput"],
        "p99_itl_ms": figures.get("p99_itl_ms"),
        "median_gap_ms": float(np.median(gaps)),
        "p99_gap_ms": float(np.percentile(gaps, 99)),
        "idle_share_of_steps": float((gaps > 0).mean()),
    }


async def _serve(ready: Ready, executor: Watched, options: argparse.Namespace) -> dict[str, Any]:
    scripted = scripted_model(babble, num_pages=ready.capacity.num_pages)

    def load(config: EngineConfig, report: Report) -> LoadedModel:
        return msgspec.structs.replace(scripted(config, report), executor=executor, capacity=ready.capacity)

    serve = build_parser({}).parse_args(["serve", "--port", "0"])
    listener = bind(serve.host, serve.port)
    listener.listen(2 * options.streams)
    seats, rows = ready.capacity.num_seats, ready.capacity.max_num_batched_tokens
    settings: dict[str, Any] = {"max_num_seqs": seats, "max_num_batched_tokens": rows, "pipeline_depth": 2}
    async with Engine("random", loader=load, **settings) as engine:
        server = Server(engine, http_settings(serve), listener, serve)
        running = asyncio.create_task(server.run())
        try:
            return await drive(f"http://127.0.0.1:{listener.getsockname()[1]}", options, 2)
        finally:
            server.should_exit = True
            await running


def peers_section(machine: Machine) -> dict[str, Any]:
    """Continuous batching of transformers where it is installed, and ours, on the same random model and prompts."""
    import torch

    from benchmarks.gpu_sections import DRAWN, generate

    streams, output = (2, 3) if machine.is_dry else (PEER_STREAMS, PEER_TOKENS)
    spec, model = random_model(machine, "Qwen3-0.6B")
    ready = executor_of(machine, spec, model, max_num_seqs=streams, max_num_batched_tokens=2048, kv_cache_bytes=2**33)
    generate(ready.executor, ready.capacity, DRAWN, 2)
    started = time.perf_counter()
    generate(ready.executor, ready.capacity, DRAWN, output, 2)
    ours = streams * output / (time.perf_counter() - started)
    ready.executor.close()
    if machine.is_dry:
        return {"ours_tokens_per_second": ours}
    transformers: Any = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(**MODELS["Qwen3-0.6B"])
    with torch.device("cuda:0"):
        peer = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    settings = transformers.GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    prompts = [[seat + 1] * 16 for seat in range(streams)]
    peer.generate_batch(inputs=prompts[:2], generation_config=settings)
    started = time.perf_counter()
    made = peer.generate_batch(inputs=prompts, generation_config=settings)
    seconds = time.perf_counter() - started
    theirs = sum(len(one.generated_tokens) for one in made.values()) / seconds
    return {"ours_tokens_per_second": ours, "theirs_tokens_per_second": theirs, "times_theirs": ours / theirs}
