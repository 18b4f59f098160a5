"""`limelight bench throughput` and `latency`: the engine in this process, without HTTP."""

import functools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from limelight.bench.arrivals import run_all
from limelight.bench.figures import Figures, figures
from limelight.bench.prompts import token_prompts
from limelight.bench.request_result import RequestResult
from limelight.engine import Engine
from limelight.errors import LimelightError
from limelight.generation import SamplingParams

BATCH_PERCENTILES = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)


class OfflineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of random tokens: `prefix_len` equal and `input_len` own ones, each answered by `output_len` tokens."""

    num_prompts: int
    input_len: int = 128
    prefix_len: int = 0
    output_len: int = 64
    temperature: float = 0.0
    seed: int = 0


async def generate_all(
    engine: Engine, load: OfflineLoad, finished: Callable[[RequestResult], None] = lambda _: None
) -> tuple[list[RequestResult], float]:
    """All prompts at once, as far as the engine admits them; see `run_all`."""
    sampling = SamplingParams(temperature=load.temperature, max_tokens=load.output_len, ignore_eos=True)

    async def one(prompt: list[int]) -> RequestResult:
        result = RequestResult()
        started = time.perf_counter()
        try:
            async with engine.stream(prompt, sampling) as stream:
                while deltas := await stream.next_deltas():
                    result.arrived(time.perf_counter() - started)
                    usage = deltas[-1].usage
                    if usage is not None:
                        result.num_input_tokens, result.num_output_tokens = usage.prompt_tokens, usage.completion_tokens
        except LimelightError as error:
            result.error = str(error)
        return result

    prompts = token_prompts(
        load.num_prompts,
        load.input_len,
        prefix_len=load.prefix_len,
        seed=load.seed,
        vocab_size=engine.model.capacity.vocab_size,
    )
    # Twice the seats keep every seat busy, as `LLM` does it.
    concurrency = min(engine.config.max_num_requests, 2 * engine.model.capacity.num_seats)
    return await run_all(
        [functools.partial(one, prompt) for prompt in prompts], [0.0] * len(prompts), concurrency, finished
    )


def throughput_figures(results: list[RequestResult], duration: float) -> Figures:
    """`figures`, and the names of `vllm bench throughput`."""
    out = figures(results, duration)
    return {
        "elapsed_time": duration,
        "num_requests": len(results),
        "total_num_tokens": out["total_input_tokens"] + out["total_output_tokens"],
        "requests_per_second": out["request_throughput"],
        "tokens_per_second": out["total_token_throughput"],
        **out,
    }


def latency_figures(batches: list[tuple[list[RequestResult], float]]) -> Figures:
    """Figures of equal batches, in seconds by the names of `vllm bench latency`, and `figures` of all requests."""
    latencies = [seconds for _, seconds in batches]
    results = [result for batch, _ in batches for result in batch]
    named: dict[str, Any] = {
        "avg_latency": float(np.mean(latencies)),
        "std_latency": float(np.std(latencies)),
        "min_latency": min(latencies),
        "latencies": latencies,
        "percentiles": {f"{p:g}": float(np.percentile(latencies, p)) for p in BATCH_PERCENTILES},
    }
    return named | figures(results, sum(latencies))
