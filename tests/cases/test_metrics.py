"""What metrics say when it gets rough: preemptions, clients that vanish, and clients that make up names.

Cases: B128, B130, B131, and what B083 says of metrics.
"""

import time

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from limelight.engine import Engine
from limelight.generation import SamplingParams
from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine, scripted_model
from tests.http.wire import CHAT, chat_body, client_of

pytestmark = pytest.mark.anyio

MODEL = "scripted"
TIGHT = {"num_pages": 8, "max_num_seqs": 4, "max_model_len": 120}
"""Room for one and a half of the sequences here, so that they push each other out."""
GAUGES = (
    *("limelight_live_requests", "limelight_running_sequences", "limelight_waiting_sequences"),
    *("limelight_kv_pages_used", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
)


async def scrape(client):
    """Value by sample name and labels, and the size of the answer."""
    response = await client.get("/metrics", headers={"accept": "text/plain", "accept-encoding": "identity"})
    assert response.status_code == 200, response.text
    families = text_string_to_metric_families(response.text)
    values = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    return values, len(response.content)


def total(values, name, **labels):
    """The sum over all series of a name that have these labels."""
    found = [value for (known, of), value in values.items() if known == name and labels.items() <= dict(of).items()]
    assert found, name
    return sum(found)


async def timed(engine, clock, prompt, sampling):
    """One request, with the client's own times of its first token and its end."""
    began_at = time.monotonic()
    async with engine.stream(prompt, sampling) as stream:
        first_at = None
        async for _ in stream:
            first_at = first_at or time.monotonic()
        clock.append((first_at - began_at, time.monotonic() - began_at))


async def crowd(engine):
    """Client times of requests of all kinds that preempt each other."""
    clock = []
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(timed, engine, clock, f"{number} prompt" * 4, SamplingParams(max_tokens=50))
        group.start_soon(timed, engine, clock, "one token", SamplingParams(max_tokens=1))
        group.start_soon(timed, engine, clock, "two choices", SamplingParams(max_tokens=40, n=2))
    return clock


async def test_preemption_lengthens_gaps_between_tokens_and_disturbs_no_other_time():
    async with scripted_engine(step_seconds=0.005, **TIGHT) as engine:
        await crowd(engine)
        assert engine.statistics().num_preemptions > 0
        counters, ended = engine.telemetry.counters, list(engine.telemetry.recent)
    for one in ended:
        assert one.arrived_at <= one.admitted_at <= one.submitted_at <= one.scheduled_at <= one.first_token_at
        for choice in one.choices:
            assert choice.scheduled_at <= choice.first_token_at <= choice.last_token_at <= choice.ended_at
            assert choice.ended_at <= one.ended_at
    parts = [
        family.of(MODEL).total
        for family in (
            *(counters.tokenize_seconds, counters.queue_seconds),
            *(counters.prefill_seconds, counters.decode_seconds),
        )
    ]
    assert min(parts) >= 0
    rest = sum(one.admitted_at - one.arrived_at + one.ended_at - one.last_token_at for one in ended)
    assert sum(parts) + rest == pytest.approx(counters.request_seconds.of(MODEL, "completed").total)
    gaps = sum(choice.last_token_at - choice.first_token_at for one in ended for choice in one.choices)
    assert counters.inter_token_seconds.total == pytest.approx(gaps)
    num_preemptions = sum(choice.num_preemptions for one in ended for choice in one.choices)
    assert counters.preemptions.of(MODEL).total == num_preemptions > 0


async def test_sums_of_the_server_are_those_of_the_client_under_preemption():
    shares = []
    for _ in range(20):  # a busy machine may wake the client late; once it does not
        async with scripted_engine(step_seconds=0.01, **TIGHT) as engine:
            clock = await crowd(engine)
            assert engine.statistics().num_preemptions > 0
            counters = engine.telemetry.counters
        first = counters.first_token_seconds.of(MODEL).total
        whole = counters.request_seconds.of(MODEL, "completed").total
        client_first, client_whole = map(sum, zip(*clock, strict=True))
        assert first <= client_first
        shares.append(max(client_first / first, client_whole / whole))
        if shares[-1] < 1.05:
            return
    pytest.fail(f"the client's sums were {shares} times those of the server")


async def test_what_is_computed_again_is_no_hit_of_the_cache():
    async with scripted_engine(vllm_metrics=True, **TIGHT) as engine, client_of(create_app(engine)) as client:
        await crowd(engine)
        values, _ = await scrape(client)
    assert total(values, "limelight_preemptions_total") > 0
    assert total(values, "limelight_prefix_cache_hits_tokens_total") == 0
    assert total(values, "limelight_cached_tokens_total") == total(values, "limelight_request_cached_tokens_sum") == 0
    assert total(values, "vllm:prefix_cache_hits_total") == total(values, "vllm:prompt_tokens_cached_total") == 0


async def test_thirty_clients_that_vanish_at_once_leave_nothing_but_counts():
    engine = Engine(MODEL, loader=scripted_model(step_seconds=0.002), vllm_metrics=True, max_num_seqs=16)
    async with engine, client_of(create_app(engine)) as client:

        async def read(scope, number):
            body = chat_body(stream=True, max_tokens=1500, messages=[{"role": "user", "content": f"{number}" * 40}])
            with scope:
                async with client.stream("POST", CHAT, json=body) as response:
                    async for _ in response.aiter_raw():
                        pass

        scopes = [anyio.CancelScope() for _ in range(30)]
        async with anyio.create_task_group() as group:
            for number, scope in enumerate(scopes):
                group.start_soon(read, scope, number)
            with anyio.fail_after(60):
                while engine.statistics().num_running < 16 or engine.statistics().num_waiting < 14:
                    await anyio.sleep(0.01)
            busy, _ = await scrape(client)
            assert all(total(busy, name) > 0 for name in GAUGES)
            for scope in scopes:
                scope.cancel()
        with anyio.fail_after(60):
            while engine.telemetry.live:
                await anyio.sleep(0.01)
        await scrape(client)
        values, _ = await scrape(client)
    assert {name: total(values, name) for name in GAUGES} == dict.fromkeys(GAUGES, 0)
    assert total(values, "limelight_requests_total", ending="aborted", reason="request_cancelled") == 30
    assert total(values, "vllm:request_success_total", finished_reason="abort") == 30
    assert total(values, "limelight_http_requests_total", route=CHAT, method="POST") == 30
    for tokens in ("prompt", "cached", "output", "reasoning"):
        assert total(values, f"limelight_{tokens}_tokens_total") == total(
            values, f"limelight_request_{tokens}_tokens_sum"
        )
    assert total(values, "vllm:prompt_tokens_total") == total(values, "vllm:request_prompt_tokens_sum") > 0
    assert total(values, "vllm:generation_tokens_total") == total(values, "vllm:request_generation_tokens_sum") > 0


async def test_no_client_can_make_up_a_series():
    engine = scripted_engine(vllm_metrics=True)
    app = create_app(engine, settings=HttpSettings(api_keys={"ann": "secret"}))
    key = {"authorization": "Bearer secret"}
    transport = httpx.ASGITransport(app=app)
    async with engine, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=key) as client:

        async def hostile(number):
            user = chat_body(max_tokens=1, user=f"user {number}", safety_identifier=f"id {number}")
            answers = [
                await client.post(CHAT, json=chat_body(model=f"model {number}")),
                await client.get(f"/v1/xyz/{number}"),
                await client.get(f"/v1/models/model-{number}"),
                await client.request(f"VERB{number}", "/v1/models"),
                await client.post(CHAT, json=user),
                await client.get("/v1/models", headers={"authorization": f"Bearer key {number}"}),
            ]
            assert [answer.status_code for answer in answers] == [404, 404, 404, 405, 200, 401]

        for number in range(2):
            await hostile(number)
        await scrape(client)
        before, size_before = await scrape(client)
        for number in range(2, 834):
            await hostile(number)
        after, size_after = await scrape(client)
    assert after.keys() == before.keys()
    assert size_after < 1.05 * size_before
    assert total(after, "limelight_http_requests_total", route="unmatched", status="404") == 834
    assert total(after, "limelight_http_refusals_total", route=CHAT, reason="not_found") == 834
    assert total(after, "limelight_principal_requests_total", principal="ann", model=MODEL) == 834
