"""Figures of a run by the names of `vllm bench serve`. Arithmetic only."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limelight.bench.request_result import RequestResult

Figures = dict[str, Any]

TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
WIDTH = 58


def figures(
    results: Sequence[RequestResult],
    duration: float,
    percentiles: Sequence[float] = (99.0,),
    goodput: Mapping[str, float] | None = None,
) -> Figures:
    """Times in milliseconds, throughput per second of `duration` (in seconds).

    TTFT is the time to the first token, TPOT the rest of the latency divided by the tokens after the first, ITL the
    time between two events with tokens, E2EL the whole latency. Failed requests are counted, and in nothing else. A
    name whose sample is empty (a TPOT of outputs of one token) is 0.

    Args:
        goodput: the most milliseconds that a good request takes, by name (ttft, tpot, e2el); a request is good that
            keeps them all, one token having no TPOT to break.
    """
    done = [result for result in results if result.error is None]
    num_input = sum(result.num_input_tokens for result in done)
    num_output = sum(result.num_output_tokens for result in done)
    out: Figures = {
        "duration": duration,
        "completed": len(done),
        "failed": len(results) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / duration,
        "output_throughput": num_output / duration,
        "total_token_throughput": (num_input + num_output) / duration,
        "num_estimated": sum(result.is_estimated for result in done),
        "errors": _counted(results),
    }
    if goodput:
        out["request_goodput"] = sum(_is_good(result, goodput) for result in done) / duration
        out["goodput"] = dict(goodput)
    for name, seconds in _samples(done).items():
        milliseconds = np.array(seconds or [0.0]) * 1000
        out[f"mean_{name}_ms"] = float(np.mean(milliseconds))
        out[f"median_{name}_ms"] = float(np.median(milliseconds))
        out[f"std_{name}_ms"] = float(np.std(milliseconds))
        for percentile in percentiles:
            out[f"p{percentile:g}_{name}_ms"] = float(np.percentile(milliseconds, percentile))
    return out


def tpot_seconds(result: RequestResult) -> float | None:
    """Time per token after the first, or None where there is no such token."""
    if result.num_output_tokens < 2:
        return None
    return (result.latency_seconds - result.ttft_seconds) / (result.num_output_tokens - 1)


def table(figures: Figures, title: str, percentiles: Sequence[float] = (99.0,)) -> str:
    """The figures as text, worded as `vllm bench serve` does."""
    labels = [
        ("Successful requests:", "completed"),
        ("Failed requests:", "failed"),
        ("Maximum request concurrency:", "max_concurrency"),
        ("Request rate configured (RPS):", "request_rate"),
        ("Benchmark duration (s):", "duration"),
        ("Total input tokens:", "total_input_tokens"),
        ("Total generated tokens:", "total_output_tokens"),
        ("Request throughput (req/s):", "request_throughput"),
        ("Request goodput (req/s):", "request_goodput"),
        ("Output token throughput (tok/s):", "output_throughput"),
        ("Total token throughput (tok/s):", "total_token_throughput"),
    ]
    lines = [f"{f' {title} ':=^{WIDTH}}"]
    lines += [row(label, figures[name]) for label, name in labels if figures.get(name) is not None]
    for name, heading in TITLES.items():
        lines.append(f"{heading:-^{WIDTH}}")
        kinds = [("mean", "Mean"), ("median", "Median"), *((f"p{p:g}", f"P{p:g}") for p in percentiles)]
        lines += [row(f"{label} {name.upper()} (ms):", figures[f"{kind}_{name}_ms"]) for kind, label in kinds]
    return "\n".join([*lines, "=" * WIDTH])


def row(label: str, value: float | str) -> str:
    """One line of a table; a label that does not fit is cut off."""
    shown = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    width = WIDTH - 14
    label = label if len(label) <= width else f"{label[: width - 3]}..."
    return f"{label:<{width}} {shown:>13}"


def _samples(done: Sequence[RequestResult]) -> dict[str, list[float]]:
    tpots = [tpot_seconds(result) for result in done]
    return {
        "ttft": [result.ttft_seconds for result in done],
        "tpot": [seconds for seconds in tpots if seconds is not None],
        "itl": [gap for result in done for gap in result.gaps_seconds],
        "e2el": [result.latency_seconds for result in done],
    }


def _is_good(result: RequestResult, limits: Mapping[str, float]) -> bool:
    seconds = {"ttft": result.ttft_seconds, "tpot": tpot_seconds(result) or 0.0, "e2el": result.latency_seconds}
    return all(seconds[name] * 1000 <= limit for name, limit in limits.items())


def _counted(results: Sequence[RequestResult]) -> dict[str, int]:
    """How often each error occurred, the most frequent first."""
    counts: dict[str, int] = {}
    for result in results:
        if result.error is not None:
            counts[result.error] = counts.get(result.error, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
