"""What a registry scrapes: names, labels, both formats, exemplars, and engines in every state."""

import threading

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from limelight.engine import Engine, EngineState
from limelight.errors import ConfigError, EngineFailed
from limelight.generation import GenerationRequest, SamplingParams, TextPrompt
from limelight.telemetry.prometheus.collector import ROWS
from limelight.telemetry.prometheus.vllm_rows import VLLM_ROWS
from limelight.testing import scripted_engine, scripted_model

pytestmark = pytest.mark.anyio

UNITS = ("_seconds", "_tokens", "_bytes", "_pages", "_total", "_info")
COUNTS = {
    *("limelight_live_requests", "limelight_running_sequences", "limelight_waiting_sequences", "limelight_seats"),
    *("limelight_engine_state", "limelight_kv_pages_used", "limelight_kv_pages_cached", "limelight_step_sequences"),
    *("limelight_request_choices", "limelight_request_preemptions", "limelight_adapter_live_requests"),
    "limelight_share_live_requests",
}
VLLM_CORE = {
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("cache_config_info", "lora_requests_info", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("num_preemptions_total", "prompt_tokens_total", "generation_tokens_total", "request_success_total"),
    *("prompt_tokens_cached_total", "prompt_tokens_by_source_total", "admission_rejections_total"),
    *("request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "request_params_n"),
    *("request_max_num_generation_tokens", "request_params_max_tokens", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_num_preemptions", "request_prefill_kv_computed_tokens"),
    *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
    *("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"),
}


def scrape(registry):
    """Value by sample name and labels, in the text format."""
    families = parse_text(generate_latest(registry).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(registry, name, **labels):
    return scrape(registry)[name, frozenset(labels.items())]


def test_names_carry_their_units_and_all_have_a_help_text():
    rows = (*ROWS, *VLLM_ROWS)
    assert len({row.exposed_name for row in rows}) == len(rows)
    for row in rows:
        assert row.help[0].isupper() or row.help[0].isdigit(), row.name
        assert not row.help.endswith(".")
    for row in ROWS:
        assert row.name.startswith("limelight_")
        assert row.exposed_name.endswith(UNITS) or row.exposed_name in COUNTS, row.name
    assert {row.exposed_name.removeprefix("vllm:") for row in VLLM_ROWS} == VLLM_CORE


async def test_a_scrape_has_the_labels_of_every_row_and_both_parsers_read_it():
    async with scripted_engine("ababababab" * 4, vllm_metrics=True, num_speculative_tokens=2) as engine:
        await engine.generate("hello", SamplingParams(max_tokens=30))
        engine.telemetry.http.ended(method="GET", route="/a", status=401, seconds=1, reached_engine=False)
        text = list(parse_text(generate_latest(engine.metrics_registry).decode()))
        openmetrics = list(parse_openmetrics(generate_openmetrics(engine.metrics_registry).decode()))
    labels = {}
    for family in text:
        for sample in family.samples:
            name = sample.name
            if family.type == "histogram":
                name = name.rpartition("_")[0]
            labels.setdefault(name, set()).add(frozenset(sample.labels.keys() - {"le"}))
    without = {f"limelight_adapter_{what}" for what in ("bytes", "live_requests")}
    without |= {f"limelight_http_{what}_total" for what in ("response_bytes", "send_wait_seconds")}
    for row in (*ROWS, *VLLM_ROWS):
        if row.exposed_name not in without:
            assert labels[row.exposed_name] == {frozenset(row.labels)}, row.name
    known = {family.name for family in openmetrics}
    assert {row.name for row in ROWS} <= known


async def test_vllm_names_are_there_on_request_alone_and_agree_with_ours():
    async with scripted_engine() as engine:
        assert not any(name.startswith("vllm") for name, _ in scrape(engine.metrics_registry))
    async with scripted_engine(vllm_metrics=True, served_model_name="m") as engine:
        await engine.generate("hello", SamplingParams(max_tokens=3, n=2))
        found = scrape(engine.metrics_registry)
    common = frozenset({("model_name", "m"), ("engine", "0")})
    assert found["vllm:generation_tokens_total", common] == 6
    assert found["vllm:prompt_tokens_total", common] == 6
    assert found["vllm:request_success_total", common | {("finished_reason", "length")}] == 1
    assert found["vllm:request_success_total", common | {("finished_reason", "abort")}] == 0
    assert found["vllm:e2e_request_latency_seconds_count", common] == 1
    assert found["vllm:kv_cache_usage_perc", common] == 0
    (cache,) = [dict(labels) for name, labels in found if name == "vllm:cache_config_info"]
    assert (cache["block_size"], cache["num_gpu_blocks"]) == ("16", "512")


async def test_names_of_principals_may_hold_anything():
    owners = ['"quoted"', "back\\slash", "line\nfeed", "{curly, brace}", "Zoë", "# EOF", "日本"]
    async with scripted_engine(vllm_metrics=True) as engine:
        for number, owner in enumerate(owners):
            sampling = SamplingParams(max_tokens=1)
            asked = GenerationRequest(request_id=f"{number}", prompt=TextPrompt("a"), sampling=sampling, owner=owner)
            async with engine.open(asked) as stream:
                await stream.result()
        found = scrape(engine.metrics_registry)
        openmetrics = list(parse_openmetrics(generate_openmetrics(engine.metrics_registry).decode()))
    assert {dict(labels)["principal"] for name, labels in found if name == "limelight_output_tokens_total"} == set(
        owners
    )
    (family,) = [family for family in openmetrics if family.name == "limelight_output_tokens"]
    assert {sample.labels["principal"] for sample in family.samples} == set(owners)


async def test_histograms_are_cumulative_and_end_with_all():
    async with scripted_engine() as engine:
        for _ in range(3):
            await engine.generate("hello", SamplingParams(max_tokens=3))
        families = {family.name: family for family in engine.metrics_registry.collect()}
    samples = families["limelight_request_output_tokens"].samples
    buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == next(sample.value for sample in samples if sample.name.endswith("_count")) == 3
    assert next(sample.value for sample in samples if sample.name.endswith("_sum")) == 9


async def test_exemplars_lead_to_traces_that_are_recorded():
    for provider, is_recorded in ((TracerProvider(), True), (TracerProvider(sampler=ALWAYS_OFF), False), (None, False)):
        async with scripted_engine() as engine:
            pass
        engine = Engine("scripted", loader=scripted_model(), tracer_provider=provider)
        async with engine:
            await engine.generate("hello", SamplingParams(max_tokens=3))
            text = generate_openmetrics(engine.metrics_registry).decode()
        exemplars = {
            sample.name: sample.exemplar
            for family in parse_openmetrics(text)
            for sample in family.samples
            if sample.exemplar is not None
        }
        assert bool(exemplars) == is_recorded
        if is_recorded:
            trace_id = format(engine.telemetry.recent[-1].span.get_span_context().trace_id, "032x")
            assert {exemplar.labels["trace_id"] for exemplar in exemplars.values()} == {trace_id}
            assert "limelight_time_to_first_token_seconds_bucket" in exemplars
            assert "limelight_request_seconds_bucket" in exemplars


async def test_a_registry_has_an_engine_while_it_runs_and_two_engines_have_two():
    registry = CollectorRegistry()
    first, second = (Engine("scripted", loader=scripted_model(), metrics_registry=registry) for _ in range(2))
    async with first:
        assert value(registry, "limelight_engine_state", state="ready") == 1
        with pytest.raises(ConfigError, match="metrics_registry has metrics of these names already") as caught:
            await second.start()
        assert caught.value.param == "metrics_registry"
        assert second.state is EngineState.NEW
        async with scripted_engine() as third:
            await third.generate("hello", SamplingParams(max_tokens=3))
            assert value(
                third.metrics_registry, "limelight_output_tokens_total", model="scripted", principal="anonymous"
            )
            assert value(registry, "limelight_live_requests") == 0
    assert scrape(registry) == {}
    async with second:
        assert value(registry, "limelight_engine_state", state="ready") == 1
    assert scrape(registry) == {}


async def test_a_scrape_works_while_the_engine_loads_and_after_it_has_failed():
    go_on = threading.Event()

    def load(config, report):
        assert go_on.wait(60)
        return scripted_model(before_step=lose)(config, report)

    def lose(step):
        raise EngineFailed("the device is gone")

    engine = Engine("scripted", loader=load, vllm_metrics=True, served_model_name="m")
    async with anyio.create_task_group() as group:
        group.start_soon(engine.start)
        with anyio.fail_after(60):
            while engine.state is not EngineState.LOADING:
                await anyio.sleep(0.01)
        found = scrape(engine.metrics_registry)
        assert found["limelight_engine_state", frozenset({("state", "loading")})] == 1
        assert ("limelight_running_sequences", frozenset()) not in found
        go_on.set()
    with pytest.raises(EngineFailed):
        await engine.generate("hello")
    with anyio.fail_after(60):
        while engine.state is not EngineState.FAILED or engine.telemetry.live:
            await anyio.sleep(0.01)
    found = scrape(engine.metrics_registry)
    assert found["limelight_engine_state", frozenset({("state", "failed")})] == 1
    failed = {("model", "m"), ("ending", "failed"), ("reason", "engine_failed")}
    assert found["limelight_requests_total", frozenset(failed)] == 1
    await engine.stop()
    assert scrape(engine.metrics_registry) == {}


async def test_an_engine_that_cannot_load_leaves_its_registry():
    def load(config, report):
        raise RuntimeError("no such model")

    engine = Engine("scripted", loader=load)
    with pytest.raises(RuntimeError):
        await engine.start()
    assert scrape(engine.metrics_registry) == {}
    await engine.stop()


async def test_any_thread_may_scrape():
    async with scripted_engine(vllm_metrics=True) as engine, anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(engine.generate, "hello", SamplingParams(max_tokens=50))
        for _ in range(5):
            found = await anyio.to_thread.run_sync(scrape, engine.metrics_registry)
            assert ("limelight_running_sequences", frozenset()) in found


async def test_a_refused_stop_from_elsewhere_leaves_the_metrics_alone():
    async with scripted_engine() as engine:
        with pytest.raises(Exception, match="another event loop"):
            await anyio.to_thread.run_sync(anyio.run, engine.stop)
        assert value(engine.metrics_registry, "limelight_engine_state", state="ready") == 1


async def test_adapters_of_live_requests_are_named_for_gateways(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    engine = scripted_engine(vllm_metrics=True, adapters={"french": str(tmp_path)})
    async with engine, engine.stream("hello", SamplingParams(max_tokens=1500), adapter="french") as stream:
        await anext(aiter(stream))
        found = scrape(engine.metrics_registry)
        (lora,) = [dict(labels) for name, labels in found if name == "vllm:lora_requests_info"]
        assert lora == {"max_lora": "8", "running_lora_adapters": "french", "waiting_lora_adapters": ""}
        assert found["limelight_adapter_live_requests", frozenset({("adapter", "french")})] == 1
        assert found["limelight_output_tokens_total", frozenset({("model", "french"), ("principal", "anonymous")})] > 0
