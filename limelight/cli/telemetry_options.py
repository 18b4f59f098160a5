"""Options of what leaves the process about its work: traces, metrics and logs."""

import argparse

from limelight.config import EngineConfig

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


def export_options(parser: argparse.ArgumentParser) -> None:
    """Where traces and OpenTelemetry's metrics go, and what is in them."""
    defaults = EngineConfig()
    group = parser.add_argument_group(
        "traces and metrics",
        "OpenTelemetry's own variables hold, too: OTEL_EXPORTER_OTLP_ENDPOINT and _HEADERS, OTEL_SERVICE_NAME,\n"
        "OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_METRICS_EXPORTER=none, OTEL_SDK_DISABLED and others\n"
        "(docs/tracing.md). Without --otlp-endpoint and without them nothing is exported.",
    )
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="base address of an OpenTelemetry collector that takes OTLP over HTTP (http://localhost:4318): traces go "
        "to URL/v1/traces, metrics to URL/v1/metrics",
    )
    group.add_argument(
        "--trace-content",
        action="store_true",
        default=None,
        help="put prompts and answers into spans, too: whoever sees the traces reads them",
    )
    group.add_argument(
        "--trace-step-interval",
        type=int,
        default=defaults.trace_step_interval,
        metavar="N",
        help="one step of the engine in N gets a span that names its requests; 0: only slow and failed ones",
    )
    group.add_argument(
        "--stall-seconds",
        type=float,
        default=defaults.stall_seconds,
        metavar="SECONDS",
        help="a token that took longer is marked in its trace, and a step that took longer has a span in any case",
    )
    group.add_argument(
        "--trace-vllm-attributes",
        action="store_true",
        default=None,
        help="add the older names of attributes that vLLM and SGLang use",
    )
    group.add_argument(
        "--vllm-metrics",
        action="store_true",
        default=None,
        help="/metrics has vLLM's names, too, for dashboards and gateways that were made for it",
    )
    group.add_argument(
        "--recent-requests",
        type=int,
        default=defaults.recent_requests,
        metavar="N",
        help="ended requests that /v1/requests and the page /ui/requests still show",
    )


def log_options(parser: argparse.ArgumentParser) -> None:
    """What is logged, and how it looks."""
    group = parser.add_argument_group(
        "logs", "On standard error. Each request leaves one line of numbers; none has a prompt, an answer or a key."
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="what to log")
    group.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="text for people, or one JSON object a line with the ids of requests and traces",
    )
