"""Writes docs/metrics.md from the rows in the code; with `--check`, only says whether the page is stale."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script, it is not beside the package

from limelight.telemetry.prometheus.engine_rows import ENGINE_ROWS, HTTP_ROWS  # noqa: E402
from limelight.telemetry.prometheus.metric import MetricRow  # noqa: E402
from limelight.telemetry.prometheus.request_rows import PRINCIPAL_ROWS, REQUEST_ROWS  # noqa: E402
from limelight.telemetry.prometheus.share_rows import SHARE_ROWS  # noqa: E402
from limelight.telemetry.prometheus.vllm_rows import VLLM_ROWS  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
INTRODUCTION = """# Metrics

Written by `tools/metrics_table.py` from the rows that a scrape is made from. `GET /metrics` answers in the text
format of Prometheus, or in OpenMetrics for those who ask for it (Prometheus does), where the histograms of requests
carry exemplars: trace ids of requests whose spans are recorded. With API keys a scrape needs one (`authorization:
{credentials_file: ...}` in the scrape config). In Python the same metrics are in `engine.metrics_registry`, a
`prometheus_client.CollectorRegistry`, from `start()` to `stop()`; `Engine(metrics_registry=...)` puts them into one
of yours, one engine each.

Everything is read from plain numbers when somebody scrapes. `model` is the served name or that of a LoRA adapter,
`route` the template of a route, `principal` the name given to an API key, `share` that of whose turn a request takes:
the key's, or, where a gateway names its users (`--share-header`), the key's and the user's; the first 200 since the
start have series of their own, all others are `other`. Nothing else that a client makes up becomes a label: it counts
as `other` or `unmatched`. `limelight serve` adds `limelight_trace_spans_total` where it exports traces, with the label
`outcome`: `exported`, `failed` or `dropped`.

[examples/monitoring](../examples/monitoring) has a Grafana dashboard and alert rules over these metrics, and a
compose file that shows them.
"""
VLLM = """For dashboards and gateways that know vLLM: `--vllm-metrics` (`EngineConfig(vllm_metrics=True)`) adds these
names, in the text format alone. Prometheus asks for OpenMetrics first; with this option it gets the text format all
the same, so without exemplars (a second scrape with `scrape_protocols: [OpenMetricsText1.0.0]` has them, under the
names above).
"""
GENAI = """Where the application has an OpenTelemetry meter provider (`Engine(meter_provider=...)`, or the global
one), the histograms of the GenAI semantic conventions are recorded into it: `gen_ai.server.request.duration` (with
`error.type` for what did not succeed), `gen_ai.server.time_to_first_token` and `gen_ai.server.time_per_output_token`
(of requests that succeeded), with `gen_ai.operation.name`, `gen_ai.provider.name` and `gen_ai.request.model`.
"""


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Writes the page; with `--check`, returns 1 if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is stale")
    options = parser.parse_args(arguments)
    text = as_markdown()
    if not options.check:
        page.write_text(text)
        return 0
    if not page.exists() or page.read_text() != text:
        print(f"{page} is stale; run python tools/metrics_table.py", file=sys.stderr)
        return 1
    return 0


def as_markdown() -> str:
    """The page."""
    sections = [
        INTRODUCTION,
        f"## Requests\n\n{_table(REQUEST_ROWS)}",
        f"## Usage by principal\n\n{_table(PRINCIPAL_ROWS)}",
        f"## Shares\n\n{_table(SHARE_ROWS)}",
        f"## Engine\n\n{_table(ENGINE_ROWS)}",
        f"## HTTP\n\n{_table(HTTP_ROWS)}",
        f"## vLLM's names\n\n{VLLM}\n{_table(VLLM_ROWS)}",
        f"## OpenTelemetry\n\n{GENAI}",
    ]
    return "\n".join(sections)


def _table(rows: Iterable[MetricRow]) -> str:
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    lines += [f"| `{row.exposed_name}` | {row.kind} | {_labels(row)} | {row.help} |" for row in rows]
    return "\n".join(lines) + "\n"


def _labels(row: MetricRow) -> str:
    return ", ".join(f"`{label}`" for label in row.labels)


if __name__ == "__main__":
    sys.exit(main())
