"""The histograms of the GenAI semantic conventions, through the OpenTelemetry API alone.

`gen_ai.server.*` of github.com/open-telemetry/semantic-conventions-genai v0.1.0 (development status).
"""

from functools import cache

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context

from limelight import __version__
from limelight.telemetry import buckets
from limelight.telemetry import conventions as names
from limelight.telemetry.request_attributes import error_type
from limelight.telemetry.shield import Shield
from limelight.telemetry.timeline import Ending, RequestTimeline
from limelight.telemetry.timings import Timings


class GenAIMetrics:
    """Records into the meter of one provider; without one that does something, a call costs a microsecond.

    Args:
        provider: None: the global one.
    """

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        self._shield = Shield("the meter")
        self._histograms = _global_histograms() if provider is None else _Histograms(provider)

    def request_ended(self, timeline: RequestTimeline, known: Timings, model: str) -> None:
        """A request has ended, or was refused.

        Args:
            known: its timings.
            model: that it counts for; never a name that nobody has checked.
        """
        with self._shield:
            self._record(timeline, known, model)

    def _record(self, timeline: RequestTimeline, known: Timings, model: str) -> None:
        assert known.total is not None, "it has ended"
        context = set_span_in_context(timeline.span, Context())
        attributes = {
            names.GEN_AI_OPERATION_NAME: timeline.operation,
            names.GEN_AI_PROVIDER_NAME: names.PROVIDER_NAME,
            names.GEN_AI_REQUEST_MODEL: model,
        }
        if timeline.ending is not Ending.COMPLETED:
            attributes[names.ERROR_TYPE] = error_type(timeline) or names.ERROR_TYPE_OTHER
            self._histograms.duration.record(known.total, attributes, context)
            return
        self._histograms.duration.record(known.total, attributes, context)
        if known.time_to_first_token is None:
            return
        self._histograms.first_token.record(known.time_to_first_token, attributes, context)
        num_later_tokens = max(choice.num_tokens for choice in timeline.choices) - 1  # choices run side by side
        if num_later_tokens:
            self._histograms.per_token.record(
                (known.total - known.time_to_first_token) / num_later_tokens, attributes, context
            )


class _Histograms:
    """The instruments of one provider."""

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter(names.SCOPE, __version__, meter_provider=provider)
        self.duration = meter.create_histogram(
            names.GEN_AI_SERVER_REQUEST_DURATION,
            unit="s",
            description="From the call to the end of a request, refused ones included",
            explicit_bucket_boundaries_advisory=buckets.GENAI_REQUEST_SECONDS,
        )
        self.first_token = meter.create_histogram(
            names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
            unit="s",
            description="From the call to the first token, of requests that succeeded",
            explicit_bucket_boundaries_advisory=buckets.GENAI_FIRST_TOKEN_SECONDS,
        )
        self.per_token = meter.create_histogram(
            names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
            unit="s",
            description="Time for each token after the first, of requests that succeeded",
            explicit_bucket_boundaries_advisory=buckets.GENAI_TOKEN_SECONDS,
        )


@cache
def _global_histograms() -> _Histograms:
    """Those of the global provider, once in a process: while nobody has set one, the API keeps every meter for ever."""
    return _Histograms(None)
