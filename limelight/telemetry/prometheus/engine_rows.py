"""What is exported of the engine, its steps and pages, the event loop, and HTTP."""

from limelight import __version__
from limelight.telemetry.prometheus.metric import MetricRow, Reading
from limelight.telemetry.prometheus.readings import family, histogram, state, totals
from limelight.telemetry.prometheus.snapshot import Snapshot


def _adapters(snapshot: Snapshot, attribute: str) -> Reading:
    adapters = () if snapshot.statistics is None else snapshot.statistics.adapters
    yield from (((adapter.name,), getattr(adapter, attribute)) for adapter in adapters)


def _info(snapshot: Snapshot) -> Reading:
    config = snapshot.config
    yield (__version__, snapshot.model, config.device, config.dtype, config.quantize, str(config.page_size)), 1


ENGINE_ROWS = (
    MetricRow(
        "info",
        "limelight_engine",
        "What is served, by which version, and how it was asked to run",
        ("version", "model", "device", "dtype", "quantize", "page_size"),
        _info,
    ),
    MetricRow(
        "gauge",
        "limelight_engine_state",
        "1 for the state that the engine is in; sequences and pages are told only while it is up",
        ("state",),
        lambda at: (((name,), float(name == at.state)) for name in at.states),
    ),
    MetricRow(
        "gauge",
        "limelight_running_sequences",
        "Sequences with a seat; a request with n choices has n",
        (),
        lambda at: state(at, lambda now: now.num_running),
    ),
    MetricRow(
        "gauge",
        "limelight_waiting_sequences",
        "Sequences that wait for a seat or for pages, preempted ones included",
        (),
        lambda at: state(at, lambda now: now.num_waiting),
    ),
    MetricRow(
        "gauge",
        "limelight_seats",
        "Sequences that can run at once",
        (),
        lambda at: state(at, lambda now: now.num_seats),
    ),
    MetricRow(
        "gauge", "limelight_kv_pages", "KV pages that there are", (), lambda at: state(at, lambda now: now.num_pages)
    ),
    MetricRow(
        "gauge",
        "limelight_kv_pages_used",
        "KV pages that sequences hold",
        (),
        lambda at: state(at, lambda now: now.num_pages - now.num_free_pages),
    ),
    MetricRow(
        "gauge",
        "limelight_kv_pages_cached",
        "KV pages in the prefix cache, held or not",
        (),
        lambda at: state(at, lambda now: now.num_cached_pages),
    ),
    MetricRow(
        "counter",
        "limelight_prefix_cache_queries_tokens",
        "Tokens of prompts that were looked up in the prefix cache",
        (),
        lambda at: state(at, lambda now: now.prefix_queries_tokens),
    ),
    MetricRow(
        "counter",
        "limelight_prefix_cache_hits_tokens",
        "Those of them that were there",
        (),
        lambda at: state(at, lambda now: now.prefix_hits_tokens),
    ),
    MetricRow(
        "counter",
        "limelight_preemptions",
        "Sequences that had to give up their pages to others",
        (),
        lambda at: state(at, lambda now: now.num_preemptions),
    ),
    MetricRow(
        "counter",
        "limelight_draft_tokens",
        "Tokens guessed by prompt lookup",
        (),
        lambda at: state(at, lambda now: now.num_draft_tokens),
    ),
    MetricRow(
        "counter",
        "limelight_accepted_draft_tokens",
        "Those of them that were right",
        (),
        lambda at: state(at, lambda now: now.num_accepted_tokens),
    ),
    MetricRow(
        "histogram",
        "limelight_step_seconds",
        "Time of a step on the runner's threads, without what overlaps the step before",
        (),
        lambda at: histogram(at.counters.step_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_step_part_seconds",
        "Parts of a step: handover to the runner's thread, submit to the executor, masks that came later, result, "
        "and report to the event loop",
        ("part",),
        lambda at: family(at.counters.step_part_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_step_tokens",
        "Tokens computed by a step, guesses included",
        (),
        lambda at: histogram(at.counters.step_tokens),
    ),
    MetricRow(
        "histogram",
        "limelight_step_sequences",
        "Sequences in the batch of a step",
        (),
        lambda at: histogram(at.counters.step_batch_size),
    ),
    MetricRow(
        "histogram",
        "limelight_event_loop_lag_seconds",
        "How late timers of the event loop were, ten times a second",
        (),
        lambda at: histogram(at.heartbeat.lag_seconds),
    ),
    MetricRow(
        "counter",
        "limelight_stuck",
        "What the watchdogs have named in the log: steps, calls on threads, standstills of the event loop",
        ("what",),
        lambda at: (
            (("step",), at.counters.num_stuck_steps),
            (("call",), at.counters.num_stuck_calls),
            (("loop",), at.counters.num_loop_stalls),
        ),
    ),
    MetricRow(
        "gauge",
        "limelight_adapter_bytes",
        "Memory of each loaded LoRA adapter",
        ("adapter",),
        lambda at: _adapters(at, "num_bytes"),
    ),
    MetricRow(
        "gauge",
        "limelight_adapter_live_requests",
        "Live requests of each loaded LoRA adapter",
        ("adapter",),
        lambda at: _adapters(at, "num_requests"),
    ),
)

HTTP_ROWS = (
    MetricRow(
        "counter",
        "limelight_http_requests",
        "HTTP exchanges by route template, method and status; 499: the client left before there was one",
        ("route", "method", "status"),
        lambda at: totals(at.http.requests),
    ),
    MetricRow(
        "histogram",
        "limelight_http_request_seconds",
        "From the first byte read to the last byte written",
        ("route",),
        lambda at: family(at.http.seconds),
    ),
    MetricRow(
        "counter",
        "limelight_http_refusals",
        "HTTP requests that were refused before the engine saw them",
        ("route", "reason"),
        lambda at: totals(at.http.refusals),
    ),
    MetricRow(
        "counter",
        "limelight_http_response_bytes",
        "Bytes of response bodies",
        ("route",),
        lambda at: totals(at.http.response_bytes),
    ),
    MetricRow(
        "counter",
        "limelight_http_send_wait_seconds",
        "Time that writes waited for clients to take what was sent",
        ("route",),
        lambda at: totals(at.http.send_wait_seconds),
    ),
)
