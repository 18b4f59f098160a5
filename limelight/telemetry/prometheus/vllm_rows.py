"""The names under which vLLM exports the same: for its dashboards, and for inference gateways that scrape them.

Those of vLLM 0.32 (`vllm/v1/metrics/loggers.py`) that have a meaning here, with the labels `model_name` and `engine`.
As in vLLM an adapter has no series of its own: requests of all of them count for the served name.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from limelight.telemetry.instruments import Histogram, HistogramFamily
from limelight.telemetry.prometheus.metric import Kind, MetricRow, Reading
from limelight.telemetry.prometheus.snapshot import Snapshot
from limelight.telemetry.statistics import EngineStatistics
from limelight.telemetry.timeline import Ending
from limelight.telemetry.usage_totals import Usage

ENGINE = "0"
"""The number of the engine behind one port; here there is one."""
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTION_REASONS = ("overloaded", "engine_not_running")
_COMMON = ("model_name", "engine")


def _row(
    kind: Kind,
    name: str,
    documentation: str,
    read: Callable[[Snapshot], Iterable[tuple[tuple[str, ...], float | Histogram]]],
    *labels: str,
) -> MetricRow:
    """A row whose samples carry vLLM's common labels before their own."""

    def with_common_labels(snapshot: Snapshot) -> Reading:
        yield from (((snapshot.model, ENGINE, *own), value) for own, value in read(snapshot))

    return MetricRow(kind, f"vllm:{name}", documentation, (*_COMMON, *labels), with_common_labels)


def _now(read: Callable[[EngineStatistics], float]) -> Callable[[Snapshot], Reading]:
    def reading(snapshot: Snapshot) -> Reading:
        if snapshot.statistics is not None:
            yield (), read(snapshot.statistics)

    return reading


def _used(read: Callable[[Usage], float]) -> Callable[[Snapshot], Reading]:
    def reading(snapshot: Snapshot) -> Reading:
        yield (), sum(map(read, snapshot.usage.values()))

    return reading


def _all(read: Callable[[Snapshot], HistogramFamily]) -> Callable[[Snapshot], Reading]:
    """The histograms of all models as one."""

    def reading(snapshot: Snapshot) -> Reading:
        family = read(snapshot)
        yield (), family.merged()

    return reading


def _finished(snapshot: Snapshot) -> Reading:
    counts = dict.fromkeys(FINISHED_REASONS, 0.0)
    for (_, ending, reason), count in list(snapshot.counters.requests.values.items()):
        if ending == Ending.COMPLETED:
            counts[reason if reason in counts else "stop"] += count
        elif ending in (Ending.ABORTED, Ending.EXPIRED):
            counts["abort"] += count
        elif ending == Ending.FAILED:
            counts["error"] += count
    yield from (((reason,), count) for reason, count in counts.items())


def _rejected(snapshot: Snapshot) -> Reading:
    counts = dict.fromkeys(REJECTION_REASONS, 0.0)
    for (_, ending, reason), count in list(snapshot.counters.requests.values.items()):
        if ending == Ending.REJECTED:
            counts[reason] = counts.get(reason, 0.0) + count
    yield from (((reason,), count) for reason, count in counts.items())


def _waiting_by_reason(snapshot: Snapshot) -> Reading:
    if snapshot.statistics is not None:
        yield ("capacity",), snapshot.statistics.num_waiting
        yield ("deferred",), 0


def _finished_requests(snapshot: Snapshot) -> Reading:
    families = snapshot.counters.request_seconds
    refused = (Ending.REJECTED, Ending.INVALID)
    yield (), families.merged(lambda labels: labels[1] not in refused)


def _prompt_sources(snapshot: Snapshot) -> Reading:
    prompt = sum(usage.prompt_tokens for usage in snapshot.usage.values())
    cached = sum(usage.cached_tokens for usage in snapshot.usage.values())
    yield ("local_compute",), prompt - cached
    yield ("local_cache_hit",), cached
    yield ("external_kv_transfer",), 0


def _cache_config(snapshot: Snapshot) -> Reading:
    config, now = snapshot.config, snapshot.statistics
    if now is not None:
        values = (config.page_size, now.num_pages, config.kv_cache_dtype, config.enable_prefix_caching)
        yield (*map(str, values), str(config.gpu_memory_utilization)), 1


def _adapters(snapshot: Snapshot) -> Reading:
    running = {timeline.adapter for timeline in snapshot.live if timeline.scheduled_at is not None}
    waiting = {timeline.adapter for timeline in snapshot.live if timeline.scheduled_at is None}
    yield (str(snapshot.config.max_loras), _names(running), _names(waiting)), time.time()


def _names(adapters: set[str | None]) -> str:
    return ",".join(sorted(adapter for adapter in adapters if adapter is not None))


def _accepted_at(snapshot: Snapshot) -> Iterator[tuple[tuple[str], float]]:
    accepted = snapshot.counters.accepted_drafts
    for position in range(snapshot.config.num_speculative_tokens):
        yield (str(position),), sum(accepted[position + 1 :])


VLLM_ROWS = (
    _row("gauge", "num_requests_running", "Sequences with a seat", _now(lambda now: now.num_running)),
    _row("gauge", "num_requests_waiting", "Sequences without one", _now(lambda now: now.num_waiting)),
    _row("gauge", "num_requests_waiting_by_reason", "The same by why they wait", _waiting_by_reason, "reason"),
    _row(
        "gauge",
        "kv_cache_usage_perc",
        "Share of the KV pages that sequences hold, 0 to 1",
        _now(lambda now: 1 - now.num_free_pages / now.num_pages),
    ),
    _row(
        "info",
        "cache_config",
        "Pages and what they hold",
        _cache_config,
        *("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"),
    ),
    MetricRow(
        "gauge",
        "vllm:lora_requests_info",
        "LoRA adapters of live requests; the value is the time of the scrape in Unix seconds",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        _adapters,
    ),
    _row("counter", "prefix_cache_queries", "Tokens looked up", _now(lambda now: now.prefix_queries_tokens)),
    _row("counter", "prefix_cache_hits", "Tokens found", _now(lambda now: now.prefix_hits_tokens)),
    _row("counter", "num_preemptions", "Sequences preempted", _now(lambda now: now.num_preemptions)),
    _row("counter", "prompt_tokens", "Tokens of prompts that ran", _used(lambda usage: usage.prompt_tokens)),
    _row("counter", "prompt_tokens_cached", "Those from the cache", _used(lambda usage: usage.cached_tokens)),
    _row("counter", "prompt_tokens_by_source", "Tokens of prompts by origin", _prompt_sources, "source"),
    _row("counter", "generation_tokens", "Tokens generated", _used(lambda usage: usage.output_tokens)),
    _row("counter", "request_success", "Requests that ended", _finished, "finished_reason"),
    _row("counter", "admission_rejections", "Requests that were not taken", _rejected, "reason"),
    _row(
        "histogram",
        "time_to_first_token_seconds",
        "From the call to the first token",
        _all(lambda at: at.counters.first_token_seconds),
    ),
    _row(
        "histogram",
        "inter_token_latency_seconds",
        "Between two tokens",
        lambda at: [((), at.counters.inter_token_seconds)],
    ),
    _row(
        "histogram",
        "request_time_per_output_token_seconds",
        "Mean time between two tokens of a request",
        _all(lambda at: at.counters.token_seconds),
    ),
    _row("histogram", "e2e_request_latency_seconds", "From the call to the end", _finished_requests),
    _row(
        "histogram",
        "request_queue_time_seconds",
        "Waiting for the first step",
        _all(lambda at: at.counters.queue_seconds),
    ),
    _row(
        "histogram",
        "request_inference_time_seconds",
        "From the first step to the last token",
        _all(lambda at: at.counters.inference_seconds),
    ),
    _row(
        "histogram",
        "request_prefill_time_seconds",
        "From the first step to the first token",
        _all(lambda at: at.counters.prefill_seconds),
    ),
    _row(
        "histogram",
        "request_decode_time_seconds",
        "From the first token to the last",
        _all(lambda at: at.counters.decode_seconds),
    ),
    _row("histogram", "request_prompt_tokens", "Tokens of the prompt", _all(lambda at: at.counters.prompt_tokens)),
    _row(
        "histogram",
        "request_prefill_kv_computed_tokens",
        "Tokens of the prompt that were not cached",
        _all(lambda at: at.counters.computed_tokens),
    ),
    _row("histogram", "request_generation_tokens", "Tokens generated", _all(lambda at: at.counters.output_tokens)),
    _row(
        "histogram",
        "request_max_num_generation_tokens",
        "Tokens of the longest choice",
        _all(lambda at: at.counters.longest_output_tokens),
    ),
    _row("histogram", "request_params_n", "Choices asked for", _all(lambda at: at.counters.choices)),
    _row("histogram", "request_params_max_tokens", "Limit asked for", _all(lambda at: at.counters.max_tokens)),
    _row("histogram", "request_num_preemptions", "Preemptions", _all(lambda at: at.counters.preemptions)),
    _row("histogram", "iteration_tokens_total", "Tokens of a step", lambda at: [((), at.counters.step_tokens)]),
    _row(
        "counter",
        "spec_decode_num_drafts",
        "Guesses of a sequence's step",
        lambda at: [((), sum(at.counters.accepted_drafts))],
    ),
    _row("counter", "spec_decode_num_draft_tokens", "Tokens guessed", _now(lambda now: now.num_draft_tokens)),
    _row("counter", "spec_decode_num_accepted_tokens", "Those right", _now(lambda now: now.num_accepted_tokens)),
    _row("counter", "spec_decode_num_accepted_tokens_per_pos", "The same by position", _accepted_at, "position"),
)
