"""The GenAI histograms in a host's own meter provider."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from limelight.engine import Engine
from limelight.errors import ModelNotFound
from limelight.generation import GenerationRequest, SamplingParams, TextPrompt
from limelight.telemetry import buckets
from limelight.telemetry.genai_metrics import GenAIMetrics
from limelight.testing import scripted_model

pytestmark = pytest.mark.anyio

COMMON = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "limelight"}


def points(reader):
    """Data points by metric and attributes."""
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "limelight"
            for metric in scope.metrics:
                assert metric.unit == "s"
                for point in metric.data.data_points:
                    found[metric.name, frozenset(point.attributes.items())] = point
    return found


def key(name, **attributes):
    return name, frozenset({**COMMON, **{name.replace("__", "."): value for name, value in attributes.items()}}.items())


async def test_successes_are_in_all_three_with_the_boundaries_of_the_conventions():
    reader = InMemoryMetricReader()
    engine = Engine(
        "scripted",
        loader=scripted_model(step_seconds=0.002),
        meter_provider=MeterProvider([reader]),
        tracer_provider=TracerProvider(),
    )
    async with engine:
        await engine.generate("hello", SamplingParams(max_tokens=5))
        await engine.generate("hello", SamplingParams(max_tokens=1))
        ended = list(engine.telemetry.recent)
    found = points(reader)
    attributes = {"gen_ai__request__model": "scripted"}
    duration = found.pop(key("gen_ai.server.request.duration", **attributes))
    first = found.pop(key("gen_ai.server.time_to_first_token", **attributes))
    per_token = found.pop(key("gen_ai.server.time_per_output_token", **attributes))
    assert found == {}
    assert (duration.count, first.count, per_token.count) == (2, 2, 1)
    assert duration.explicit_bounds == buckets.GENAI_REQUEST_SECONDS
    assert first.explicit_bounds == buckets.GENAI_FIRST_TOKEN_SECONDS
    assert per_token.explicit_bounds == buckets.GENAI_TOKEN_SECONDS
    assert duration.sum == pytest.approx(sum(one.ended_at - one.arrived_at for one in ended))
    assert first.sum == pytest.approx(sum(one.first_token_at - one.arrived_at for one in ended))
    assert per_token.sum == pytest.approx((ended[0].ended_at - ended[0].first_token_at) / 4)
    assert {example.trace_id for example in duration.exemplars} <= {
        one.span.get_span_context().trace_id for one in ended
    }
    assert duration.exemplars


async def test_what_did_not_succeed_has_its_error_in_the_duration_alone_and_no_name_that_a_client_made_up():
    reader = InMemoryMetricReader()
    engine = Engine("scripted", loader=scripted_model(), meter_provider=MeterProvider([reader]))
    async with engine:
        for number in range(20):
            asked = GenerationRequest(
                request_id="r", prompt=TextPrompt("a"), sampling=SamplingParams(), adapter=f"made up {number}"
            )
            with pytest.raises(ModelNotFound):
                async with engine.open(asked):
                    pass
    found = points(reader)
    refused = key("gen_ai.server.request.duration", gen_ai__request__model="other", error__type=ModelNotFound.code)
    assert set(found) == {refused}
    assert found[refused].count == 20


def test_engines_without_a_provider_share_their_instruments() -> None:
    """The API keeps every meter that is asked for while no provider is set: one for each engine would be a leak."""
    assert len({id(GenAIMetrics(None)._histograms) for _ in range(3)}) == 1
    assert GenAIMetrics(MeterProvider([]))._histograms is not GenAIMetrics(None)._histograms
