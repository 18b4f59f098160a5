"""Quotas over HTTP: 429 with the exact wait, what is left in headers, and official clients that try again."""

import re
from datetime import UTC, datetime

import anthropic
import anyio
import openai
import pytest

from limelight.errors import DeadlineExceeded, InvalidRequest, Overloaded, ShareExceeded, StepFailure
from limelight.generation import Deadlines, GenerationRequest, SamplingParams, Share, TextPrompt, TokensPrompt
from limelight.http import HttpSettings
from limelight.http.keys.key_file import KeyEntry, KeyFile, digest_of, write_keys
from limelight.http.rate_limits import duration
from limelight.telemetry.timeline import Ending
from limelight.testing import Answers, FailStep, Hang, scripted_engine
from tests.http.test_disconnect import until
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, error_of, serving

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"


@pytest.fixture
def settings(tmp_path):
    """Keys with a slow quota, a fast one, a limit of requests, and none of these."""
    entries = (
        KeyEntry(name="slow", sha256=digest_of("slow"), tokens_per_minute=1, burst_tokens=100, max_num_requests=9),
        KeyEntry(name="fast", sha256=digest_of("fast"), tokens_per_minute=60_000, burst_tokens=60),
        KeyEntry(name="free", sha256=digest_of("free")),
    )
    path = tmp_path / "keys.json"
    write_keys(path, KeyFile(keys=entries))
    return HttpSettings(key_file=str(path), share_header="x-user")


def of(name, **headers):
    return {"authorization": f"Bearer {name}", **headers}


def limits(answer):
    return {name: value for name, value in answer.headers.items() if "ratelimit" in name}


async def test_answers_say_what_is_left_and_a_429_when_there_is_enough(settings):
    async with serving(scripted_engine("b" * 9), settings) as client:
        answer = await client.post(COMPLETIONS, json=completion_body(prompt="a" * 40, max_tokens=9), headers=of("slow"))
        usage = answer.json()["usage"]
        used = usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] == 9
        told = limits(answer)
        left = int(told["x-ratelimit-remaining-tokens"])
        assert 100 - used <= left <= 101 - used
        assert told["x-ratelimit-limit-tokens"] == "100"
        assert told["x-ratelimit-limit-requests"] == "9"
        assert int(told["x-ratelimit-remaining-requests"]) in (8, 9)
        assert re.fullmatch(r"\d+m[\d.]+s", told["x-ratelimit-reset-tokens"])

        for headers in (of("slow"), of("slow", **{"x-user": "somebody new"})):
            refused = await client.post(COMPLETIONS, json=completion_body(prompt="c" * 90), headers=headers)
            error = error_of(refused, 429)
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            wait = int(refused.headers["retry-after-ms"]) / 1000
            missing = usage["prompt_tokens"] - 40 + 90 - left  # with the token that begins a prompt
            assert 60 * (missing - 1) <= wait <= 60 * (missing + 1)
            assert int(refused.headers["retry-after"]) == pytest.approx(wait, abs=1)
            assert refused.headers["x-should-retry"] == "false"  # clients would not wait for so long
            assert limits(refused)["x-ratelimit-remaining-tokens"] == str(left)

        cached = completion_body(prompt="a" * 40, max_tokens=1)
        assert (await client.post(COMPLETIONS, json=cached, headers=of("slow"))).status_code == 200
        assert limits(await client.post(CHAT, json=chat_body(), headers=of("free"))) == {}
        assert limits(await client.get("/v1/models", headers=of("slow"))) == {}


async def test_streams_and_embeddings_draw_on_the_quota_too(settings):
    async with serving(scripted_engine("b" * 9), settings) as client:
        body = completion_body(prompt="a" * 40, max_tokens=9, stream=True)
        streamed = await client.post(COMPLETIONS, json=body, headers=of("slow"))
        assert "x-ratelimit-remaining-tokens" in streamed.headers
        assert error_of(await client.post(COMPLETIONS, json={**body, "prompt": "c" * 80}, headers=of("slow")), 429)
        embedded = await client.post(
            "/v1/embeddings", json={"model": "scripted", "input": ["d" * 90, "e" * 90]}, headers=of("slow")
        )
        assert embedded.status_code == 429


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_openai_client_waits_and_succeeds(settings, stream):
    engine = scripted_engine("b" * 30)
    async with serving(engine, settings) as client:
        async with openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="fast", max_retries=9) as official:
            for number in range(4):
                messages = [{"role": "user", "content": f"{number} {'x' * 40}"}]
                answer = await official.chat.completions.create(model="scripted", messages=messages, stream=stream)
                if stream:
                    assert [chunk async for chunk in answer]
        endings = [view.ending for view in engine.requests(recent=100)]
    assert endings.count(Ending.COMPLETED) == 4
    assert Ending.REJECTED in endings


async def test_the_official_anthropic_client_waits_and_succeeds(settings):
    engine = scripted_engine("b" * 30)
    async with serving(engine, settings) as client:
        async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="fast", max_retries=9) as official:
            for number in range(4):
                messages = [{"role": "user", "content": f"{number} {'x' * 40}"}]
                answer = await official.messages.create(model="scripted", messages=messages, max_tokens=30)
                assert answer.usage.output_tokens
        endings = [view.ending for view in engine.requests(recent=100)]
        assert endings.count(Ending.COMPLETED) == 4
        assert Ending.REJECTED in endings

        body = chat_body(max_tokens=5, messages=[{"role": "user", "content": "y" * 90}])
        first = await client.post(MESSAGES, json=body, headers={"x-api-key": "slow"})
        told = limits(first)
        assert told["anthropic-ratelimit-tokens-limit"] == "100"
        assert told["anthropic-ratelimit-tokens-remaining"] == "0"
        assert datetime.fromisoformat(told["anthropic-ratelimit-tokens-reset"]) > datetime.now(UTC)
        assert told["anthropic-ratelimit-requests-limit"] == "9"
        refused = await client.post(MESSAGES, json=body | {"system": "other"}, headers={"x-api-key": "slow"})
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_messages_of_a_full_server_are_529_and_the_official_client_tries_again(settings):
    hang = Hang()
    engine = scripted_engine(Answers({"hold": ["a", hang, "b"]}, otherwise="fine"), max_num_requests=1)
    async with serving(engine, settings) as client:
        body = chat_body(messages=[{"role": "user", "content": "hold"}], stream=True)
        async with client.stream("POST", CHAT, json=body, headers=of("free")) as running:
            chunks = running.aiter_raw()
            await anext(chunks)
            refused = await client.post(MESSAGES, json=chat_body(max_tokens=5), headers=of("free"))
            assert refused.status_code == 529
            assert refused.json()["error"]["type"] == "overloaded_error"
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.post(CHAT, json=chat_body(), headers=of("free"))).status_code == 503
            answers = []

            async def ask():
                async with anthropic.AsyncAnthropic(
                    base_url=str(client.base_url), api_key="free", max_retries=9
                ) as official:
                    answers.append(await official.messages.create(model="scripted", messages=HI, max_tokens=5))

            async with anyio.create_task_group() as group:
                num_ended = len(engine.requests(recent=100))
                group.start_soon(ask)
                await until(lambda: len(engine.requests(recent=100)) > num_ended)  # it has been refused once
                hang.release()
        assert answers[0].content[0].text == "fine"


QUOTA = Share(name="a", tokens_per_minute=1, burst_tokens=1000)


def request(name, prompt, n=1, share=QUOTA, **fields):
    return GenerationRequest(
        request_id=name,
        prompt=TokensPrompt(tuple(prompt)),
        sampling=SamplingParams(max_tokens=8, ignore_eos=True, n=n),
        share=share,
        **fields,
    )


def used(engine):
    return 1000 - engine.quota(QUOTA).remaining_tokens


async def run(engine, asked):
    async with engine.open(asked) as stream:
        return await stream.result()


@pytest.mark.parametrize("depth", [1, 2])
async def test_in_python_a_request_pays_what_its_usage_says(depth):
    async with scripted_engine("b" * 400, pipeline_depth=depth) as engine:
        paid = 0
        for number, n in enumerate((1, 1, 3)):
            prompt = [5] * 70 if number < 2 else [6] * 70
            usage = (await run(engine, request(f"r{number}", prompt, n))).usage
            paid += usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
            await until(lambda: engine.statistics().num_requests == 0)
            assert used(engine) == pytest.approx(paid, abs=1)
        with pytest.raises(ShareExceeded, match="'a' may use 1 tokens per minute and 1000 at once") as refused:
            await run(engine, request("larger than the burst", [7] * 1001))
        assert refused.value.retry_after_seconds == pytest.approx(60 * paid, rel=0.05)


async def test_what_is_cancelled_refused_or_late_before_it_ran_costs_nothing():
    hang = Hang()
    answers = Answers({"hold": ["a", hang, "b"]}, otherwise="fine")
    engine = scripted_engine(answers, max_num_seqs=1, max_queued_tokens=100)
    async with engine, engine.stream("hold") as running:
        await anext(running)
        async with engine.open(request("waits", [5] * 90)) as waiting:
            await until(lambda: engine.statistics().num_waiting == 1)
            assert used(engine) == pytest.approx(90, abs=1)
            with pytest.raises(Overloaded, match="max_queued_tokens"):
                await run(engine, request("queue is full", [6] * 90))
            assert used(engine) == pytest.approx(90, abs=1)
            waiting.abort()
        await until(lambda: engine.statistics().num_waiting == 0)
        assert used(engine) == pytest.approx(0, abs=1)
        with pytest.raises(DeadlineExceeded, match="max_queue_ms"):
            await run(engine, request("late", [5] * 90, deadlines=Deadlines(max_queue_ms=5)))
        await until(lambda: engine.statistics().num_waiting == 0)
        assert used(engine) == pytest.approx(0, abs=1)
        hang.release()


async def test_a_step_that_fails_costs_nothing():
    async with scripted_engine(Answers({"fail": [FailStep()]}, otherwise="fine")) as engine:
        asked = GenerationRequest(request_id="x", prompt=TextPrompt("fail"), sampling=SamplingParams(), share=QUOTA)
        with pytest.raises(StepFailure):
            await run(engine, asked)
        assert used(engine) == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens_per_minute": 0},
        {"tokens_per_minute": float("nan")},
        {"tokens_per_minute": "3"},
        {"tokens_per_minute": 5, "burst_tokens": float("inf")},
        {"burst_tokens": 5},
        {"name": "x" * 400},
        {"payer": "\ud800"},
    ],
)
async def test_a_share_that_makes_no_sense_is_refused(fields):
    async with scripted_engine() as engine:
        with pytest.raises(InvalidRequest, match=r"share\.") as refused:
            await run(engine, request("x", [5], share=Share(**({"name": "a"} | fields))))
        assert refused.value.param == "share"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0171, "18ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (3661.25, "1h1m1.25s"), (7200, "2h0m0s")],
)
def test_durations_are_written_as_go_writes_them(seconds, text):
    assert duration(seconds) == text
