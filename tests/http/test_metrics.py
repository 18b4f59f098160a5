"""`GET /metrics`: formats, compression, keys, and the engine's registry behind it."""

import gzip

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from limelight.engine import Engine
from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine, scripted_model
from tests.http.wire import CHAT, chat_body, client_of, error_of

pytestmark = pytest.mark.anyio

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
OPENMETRICS_ALONE = "application/openmetrics-text;version=1.0.0;q=0.6,*/*;q=0.5"


async def scraped(client, accept="*/*", **headers):
    response = await client.get("/metrics", headers={"accept": accept, "accept-encoding": "identity", **headers})
    assert response.status_code == 200, response.text
    return response


def names(families):
    return {family.name for family in families}


async def test_whoever_asks_for_nothing_special_gets_the_text_format(serve):
    async with serve() as client:
        response = await scraped(client)
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert "limelight_live_requests" in names(parse_text(response.text))


@pytest.mark.parametrize("accept", [PROMETHEUS_2, PROMETHEUS_3, OPENMETRICS_ALONE])
async def test_prometheus_gets_openmetrics_with_exemplars(serve, accept):
    engine = Engine("scripted", loader=scripted_model(), tracer_provider=TracerProvider())
    async with serve(engine) as client:
        assert (await client.post(CHAT, json=chat_body(max_tokens=2))).status_code == 200
        response = await scraped(client, accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert response.text.endswith("# EOF\n")
    assert response.text.count("# EOF") == 1
    families = list(parse_openmetrics(response.text))
    assert any(sample.exemplar for family in families for sample in family.samples)


@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
@pytest.mark.parametrize("version", ["abc", "1..0", "\xb2", "1.0.x"])
async def test_a_version_that_is_none_gets_the_text_format(serve, kind, version):
    async with serve() as client:
        response = await scraped(client, f"{kind}; version={version}".encode("latin-1"))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "limelight_live_requests" in names(parse_text(response.text))


async def test_with_vllm_names_prometheus_gets_the_text_format_and_openmetrics_has_none_of_them(serve):
    async with serve(scripted_engine(vllm_metrics=True)) as client:
        for accept in (PROMETHEUS_2, PROMETHEUS_3, "text/plain", "*/*"):
            response = await scraped(client, accept)
            assert response.headers["content-type"].startswith("text/plain")
            assert "vllm:num_requests_running" in names(parse_text(response.text))
        response = await scraped(client, OPENMETRICS_ALONE)
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        assert "vllm" not in response.text
        assert "limelight_live_requests" in names(parse_openmetrics(response.text))


async def test_it_is_compressed_for_those_who_can_read_that(serve):
    async with serve() as client:
        plain = await scraped(client)
        async with client.stream("GET", "/metrics", headers={"accept-encoding": "gzip"}) as response:
            raw = b"".join([part async for part in response.aiter_raw()])
    assert response.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert len(raw) * 5 < len(plain.content)
    assert b"limelight_live_requests" in gzip.decompress(raw)


async def test_a_scrape_needs_a_key_where_there_are_keys(serve):
    settings = HttpSettings(api_keys={"ann": "secret"})
    async with serve(settings=settings) as client:
        error_of(await client.get("/metrics"), 401)
        response = await scraped(client, authorization="Bearer secret")
        assert "secret" not in response.text


async def test_an_engine_that_is_not_there_breaks_no_scrape():
    engine = scripted_engine()
    async with client_of(create_app(engine)) as client:
        assert (await scraped(client)).text == ""
        assert (await scraped(client, OPENMETRICS_ALONE)).text == "# EOF\n"
        async with engine:
            assert "limelight_live_requests 0.0" in (await scraped(client)).text


async def test_a_registry_of_the_host_is_shown_whole_and_two_applications_get_along(serve):
    registry = CollectorRegistry()
    Gauge("of_the_host", "Something else", registry=registry).set(3)
    engine = Engine("scripted", loader=scripted_model(), metrics_registry=registry)
    async with serve(engine) as client, serve() as other:
        shown = (await scraped(client)).text
        assert "of_the_host 3.0" in shown
        assert "limelight_live_requests 0.0" in shown
        assert "of_the_host" not in (await scraped(other)).text


async def test_refusals_before_the_engine_are_counted_by_route_and_reason(serve):
    settings = HttpSettings(api_keys={"ann": "secret"}, max_body_bytes=1000, allowed_hosts=("127.0.0.1",))
    async with serve(settings=settings) as client:
        key = {"authorization": "Bearer secret"}
        await client.post(CHAT, json=chat_body())
        await client.post(CHAT, json=chat_body(), headers={**key, "host": "evil.example"})
        await client.post(CHAT, json=chat_body(model="unknown"), headers=key)
        await client.post(CHAT, json=chat_body(user="x" * 2000), headers=key)
        await client.post(CHAT, content=b"{}", headers={**key, "content-type": "text/csv"})
        await client.post(CHAT, content=b"{", headers=key)
        await client.post("/v1/load_lora_adapter", json={}, headers=key)
        await client.get(CHAT, headers=key)
        await client.get("/v1/nothing/here", headers=key)
        assert (await client.post(CHAT, json=chat_body(max_tokens=3), headers=key)).status_code == 200
        families = {family.name: family for family in parse_text((await scraped(client, **key)).text)}
    found = {
        (sample.labels["route"], sample.labels["reason"]): sample.value
        for sample in families["limelight_http_refusals"].samples
    }
    chat_reasons = ("unauthorized", "forbidden", "not_found", "too_large", "media_type", "invalid")
    expected = {(CHAT, reason) for reason in chat_reasons}
    expected |= {
        ("/v1/load_lora_adapter", "forbidden"),
        ("unmatched", "not_found"),
        ("unmatched", "method_not_allowed"),
    }
    assert found == dict.fromkeys(expected, 1)
    sent = {s.labels["route"]: s.value for s in families["limelight_http_response_bytes"].samples}
    assert sent[CHAT] > 1000
    waited = {s.labels["route"]: s.value for s in families["limelight_http_send_wait_seconds"].samples}
    assert waited[CHAT] >= 0


async def test_streams_go_on_while_many_scrape(serve):
    async with serve(scripted_engine(vllm_metrics=True)) as client:
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(scraped, client)
            response = await client.post(CHAT, json=chat_body(max_tokens=20))
        assert response.status_code == 200
