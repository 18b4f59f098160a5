"""What is exported of requests."""

from limelight.generation import FinishReason
from limelight.telemetry.prometheus.metric import MetricRow
from limelight.telemetry.prometheus.readings import by_model, family, histogram, number, state, totals, used
from limelight.telemetry.timeline import Ending

_MODEL = ("model",)
_PRINCIPAL = ("model", "principal")

REQUEST_ROWS = (
    MetricRow(
        "gauge",
        "limelight_live_requests",
        "Requests that have been admitted and have not ended; one with several choices counts once",
        (),
        lambda at: state(at, lambda now: now.num_requests),
    ),
    MetricRow(
        "counter",
        "limelight_requests",
        "Requests that have ended or were refused, by how, and by finish reason or the error's code",
        ("model", "ending", "reason"),
        lambda at: totals(
            at.counters.requests, *((at.model, Ending.COMPLETED, reason.value) for reason in FinishReason)
        ),
    ),
    MetricRow(
        "histogram",
        "limelight_request_seconds",
        "From the call until the request ended, by how it ended",
        ("model", "ending"),
        lambda at: family(at.counters.request_seconds, (at.model, Ending.COMPLETED)),
    ),
    MetricRow(
        "histogram",
        "limelight_time_to_first_token_seconds",
        "From the call until the request's first token was drawn",
        _MODEL,
        lambda at: by_model(at, at.counters.first_token_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_inter_token_seconds",
        "Between two tokens of a choice, one observation for each step that drew any",
        (),
        lambda at: histogram(at.counters.inter_token_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_time_per_output_token_seconds",
        "Mean time between two tokens of a request",
        _MODEL,
        lambda at: by_model(at, at.counters.token_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_request_tokenize_seconds",
        "From admission until the prompt's tokens and the output's constraints were there",
        _MODEL,
        lambda at: by_model(at, at.counters.tokenize_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_request_queue_seconds",
        "From there until the first step that carried the request was planned",
        _MODEL,
        lambda at: by_model(at, at.counters.queue_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_request_prefill_seconds",
        "From there until its first token was drawn",
        _MODEL,
        lambda at: by_model(at, at.counters.prefill_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_request_decode_seconds",
        "From the first token until the last one",
        _MODEL,
        lambda at: by_model(at, at.counters.decode_seconds),
    ),
    MetricRow(
        "histogram",
        "limelight_request_prompt_tokens",
        "Tokens of the prompt, cached ones included",
        _MODEL,
        lambda at: by_model(at, at.counters.prompt_tokens),
    ),
    MetricRow(
        "histogram",
        "limelight_request_cached_tokens",
        "Tokens of the prompt that came from the prefix cache",
        _MODEL,
        lambda at: by_model(at, at.counters.cached_tokens),
    ),
    MetricRow(
        "histogram",
        "limelight_request_output_tokens",
        "Tokens generated, all choices together",
        _MODEL,
        lambda at: by_model(at, at.counters.output_tokens),
    ),
    MetricRow(
        "histogram",
        "limelight_request_reasoning_tokens",
        "Those of them that were reasoning",
        _MODEL,
        lambda at: by_model(at, at.counters.reasoning_tokens),
    ),
    MetricRow(
        "histogram",
        "limelight_request_choices",
        "Choices asked for (n)",
        _MODEL,
        lambda at: by_model(at, at.counters.choices),
    ),
    MetricRow(
        "histogram",
        "limelight_request_max_tokens",
        "The limit asked for (max_tokens), of requests that have one",
        _MODEL,
        lambda at: by_model(at, at.counters.max_tokens),
    ),
    MetricRow(
        "histogram",
        "limelight_request_preemptions",
        "How often the request's choices were preempted",
        _MODEL,
        lambda at: by_model(at, at.counters.preemptions),
    ),
    MetricRow(
        "counter",
        "limelight_stalls",
        "Tokens that came later after the one before than stall_seconds",
        (),
        lambda at: number(at.counters.num_stalls),
    ),
)

PRINCIPAL_ROWS = (
    MetricRow(
        "counter",
        "limelight_principal_requests",
        "Requests admitted, by whose key they came with; principals beyond the first 200 are `other`",
        _PRINCIPAL,
        lambda at: used(at, lambda usage: usage.num_requests),
    ),
    MetricRow(
        "counter",
        "limelight_prompt_tokens",
        "Tokens of prompts that have begun to run, cached ones included",
        _PRINCIPAL,
        lambda at: used(at, lambda usage: usage.prompt_tokens),
    ),
    MetricRow(
        "counter",
        "limelight_cached_tokens",
        "Those of them that came from the prefix cache",
        _PRINCIPAL,
        lambda at: used(at, lambda usage: usage.cached_tokens),
    ),
    MetricRow(
        "counter",
        "limelight_output_tokens",
        "Tokens generated so far, by live requests too",
        _PRINCIPAL,
        lambda at: used(at, lambda usage: usage.output_tokens),
    ),
    MetricRow(
        "counter",
        "limelight_reasoning_tokens",
        "Those of ended requests that were reasoning",
        _PRINCIPAL,
        lambda at: used(at, lambda usage: usage.reasoning_tokens),
    ),
    MetricRow(
        "counter",
        "limelight_principal_step_seconds",
        "Share of the time that steps took",
        _PRINCIPAL,
        lambda at: used(at, lambda usage: usage.step_seconds),
    ),
    MetricRow(
        "counter",
        "limelight_principal_page_seconds",
        "KV pages held, integrated over time; shared ones count for each holder",
        _PRINCIPAL,
        lambda at: used(at, lambda usage: usage.page_seconds),
    ),
)
