"""Limits of time that requests bring: what is refused, what ends with what there is, and that nothing is left."""

import anthropic
import anyio
import openai
import pytest

from limelight import Deadlines, SamplingParams
from limelight.errors import DeadlineExceeded, InvalidRequest, Overloaded
from limelight.generation import GenerationRequest, TextPrompt
from limelight.testing import Answers, Hang, Wait, scripted_engine
from tests.http.test_disconnect import idle, until
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, error_of, frames, serving

pytestmark = pytest.mark.anyio

FOREVER = {"ignore_eos": True, "max_tokens": 2000}


def asking(deadlines: Deadlines, **sampling: object) -> GenerationRequest:
    params = SamplingParams(**{"max_tokens": 50, "ignore_eos": True, **sampling})
    return GenerationRequest(request_id="r", prompt=TextPrompt("x"), sampling=params, deadlines=deadlines)


async def free(engine):
    """Until nothing of any request is left."""
    await until(lambda: idle(engine))
    statistics = engine.statistics()
    assert statistics.num_free_pages == statistics.num_pages
    assert statistics.num_free_seats == statistics.num_seats


async def test_who_waits_too_long_in_the_queue_is_refused_and_the_running_one_goes_on():
    hang = Hang()
    async with scripted_engine(Answers({"hold": ["a", hang, "b"]}), max_num_seqs=1, max_num_batched_tokens=8) as engine:
        async with engine.stream("hold") as running:
            assert (await anext(running)).text == "a"
            with pytest.raises(DeadlineExceeded, match=r"no step worked on the request within 30 ms") as refusal:
                async with engine.open(asking(Deadlines(max_queue_ms=30, max_ttft_ms=10_000))) as waiting:
                    await waiting.result()
            assert refusal.value.param == "max_queue_ms"
            hang.release()
            assert "".join([delta.text async for delta in running]) == "b"
        await free(engine)
        [view] = [view for view in engine.requests(recent=5) if view.request_id == "r"]
        assert (view.ending, view.error_code) == ("expired", "deadline_exceeded")


@pytest.mark.parametrize("limit", ["max_ttft_ms", "max_total_ms"])
async def test_who_has_no_token_in_time_fails(limit):
    async with scripted_engine(Answers(otherwise=[Wait(0.3), "late"])) as engine:
        with pytest.raises(DeadlineExceeded, match="the request had no token within 20 ms") as refusal:
            async with engine.open(asking(Deadlines(**{limit: 20}))) as stream:
                await stream.result()
        assert refusal.value.param == limit
        await free(engine)


async def test_limits_that_are_kept_change_nothing():
    async with scripted_engine("hello") as engine:
        limits = Deadlines(max_queue_ms=60_000, max_ttft_ms=60_000, max_total_ms=60_000)
        async with engine.open(asking(limits, ignore_eos=False)) as stream:
            assert (await stream.result()).text == "hello"
        [view] = engine.requests(recent=1)
        assert view.ending == "completed"


async def test_a_token_in_time_lifts_the_limits_before_it():
    script = Answers(otherwise=["a", Wait(0.15), "b"])
    async with (
        scripted_engine(script) as engine,
        engine.open(asking(Deadlines(max_queue_ms=100, max_ttft_ms=100), ignore_eos=False)) as stream,
    ):
        assert (await stream.result()).text == "ab"


async def test_an_answer_that_has_begun_ends_with_what_there_is():
    async with scripted_engine("abc" * 1000, step_seconds=0.002) as engine:
        async with engine.open(asking(Deadlines(max_total_ms=100), n=2, max_tokens=1500)) as stream:
            generation = await stream.result()
        await free(engine)
        for output in generation.outputs:
            assert output.finish_reason == "length"
            assert output.finish_details == "deadline"
            assert 0 < len(output.token_ids) < 1500
            assert ("abc" * 1000).startswith(output.text)
        assert generation.usage.completion_tokens == sum(len(output.token_ids) for output in generation.outputs)


async def test_what_was_held_back_is_given_at_the_end():
    """A text that may belong to a stop string, and half of a letter."""
    script = Answers(otherwise=["one ST", Hang(5)])
    async with (
        scripted_engine(script) as engine,
        engine.open(asking(Deadlines(max_total_ms=80), stop=["STOP"])) as stream,
    ):
        assert (await stream.result()).text == "one ST"
        script.release()


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5"])
async def test_a_limit_that_makes_no_sense_is_refused_by_name(value):
    async with scripted_engine("x") as engine:
        with pytest.raises(InvalidRequest, match="milliseconds above 0") as refusal:
            async with engine.open(asking(Deadlines(max_ttft_ms=value))):
                pass
        assert refusal.value.param == "max_ttft_ms"


@pytest.mark.parametrize("where", ["body", "header"])
@pytest.mark.parametrize("stream", [False, True])
async def test_over_http_it_is_504_and_not_to_be_tried_again(where, stream):
    limits = {"max_ttft_ms": 30} if where == "body" else {}
    headers = {"x-limelight-max-ttft-ms": "30"} if where == "header" else {}
    async with serving(scripted_engine(Answers(otherwise=[Wait(0.3), "late"]))) as client:
        for path, body in ((CHAT, chat_body), (COMPLETIONS, completion_body)):
            answer = await client.post(path, json=body(stream=stream, **limits), headers=headers)
            error = error_of(answer, 504)
            assert (error["code"], error["type"], error["param"]) == (
                "deadline_exceeded",
                "timeout_error",
                "max_ttft_ms",
            )
            assert answer.headers["x-should-retry"] == "false"
            assert "retry-after" not in answer.headers


async def test_a_stream_ends_typed_with_what_there_is():
    async with serving(scripted_engine("abc" * 600, step_seconds=0.002)) as client:
        body = chat_body(stream=True, max_total_ms=120, stream_options={"include_usage": True}, **FOREVER)
        answer = await client.post(CHAT, json=body)
        events = frames(answer.content)
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert choices[-1]["finish_reason"] == "length"
    assert choices[-1]["finish_details"] == "deadline"
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text
    assert ("abc" * 600).startswith(text)
    usage = events[-1]["usage"]
    assert 0 < usage["completion_tokens"] < 2000


async def test_the_shorter_one_of_body_and_header_counts():
    async with serving(scripted_engine(Answers(otherwise=[Wait(0.2), "late"]))) as client:
        for body, header in ((10_000, "30"), (30, "10000")):
            headers = {"x-limelight-max-total-ms": header}
            error_of(await client.post(CHAT, json=chat_body(max_total_ms=body), headers=headers), 504)


@pytest.mark.parametrize(("header", "says"), [("soon", "must be milliseconds"), ("-5", "above 0"), ("nan", "above 0")])
async def test_a_header_that_makes_no_sense_is_refused(header, says):
    async with serving(scripted_engine("x")) as client:
        answer = await client.post(CHAT, json=chat_body(), headers={"x-limelight-max-queue-ms": header})
        assert says in error_of(answer, 400)["message"]


async def test_what_cannot_be_in_time_is_refused_at_once_and_costs_no_step():
    async with scripted_engine("a" * 500, step_seconds=0.02, max_num_seqs=1, max_num_batched_tokens=16) as engine:
        await engine.generate("x", SamplingParams(max_tokens=70, ignore_eos=True))  # now it knows its steps and answers
        async with engine.stream("x", SamplingParams(max_tokens=200, ignore_eos=True)) as running:
            await anext(running)
            with pytest.raises(DeadlineExceeded, match="its first token is expected") as refused:
                async with engine.open(asking(Deadlines(max_ttft_ms=400))) as stream:
                    await stream.result()
            assert refused.value.param == "max_ttft_ms"
            [view] = [view for view in engine.requests(recent=9) if view.request_id == "r"]
            assert view.step_seconds == 0


async def test_a_queue_of_tokens_is_bounded_and_what_is_cached_may_come_in():
    hang = Hang()
    script = Answers({"hold": ["a", hang, "b"]}, otherwise="fine")
    engine = scripted_engine(script, max_num_seqs=1, max_num_batched_tokens=64, max_queued_tokens=100)
    cached = "c" * 200
    async with engine:
        assert (await engine.generate(cached)).text == "fine"
        async with engine.stream("hold") as running:
            await anext(running)
            assert await anyio.to_thread.run_sync(hang.reached.wait, 10)
            async with engine.stream("q" * 80) as queued:
                await until(lambda: engine.statistics().num_waiting == 1)
                with pytest.raises(Overloaded, match=r"81 prompt tokens wait and this prompt has 41 .* limit is 100"):
                    await engine.generate("z" * 40)
                async with engine.stream(cached) as known:
                    await until(lambda: engine.statistics().num_waiting == 2)
                    hang.release()
                    assert (await known.result()).text == "fine"
                assert (await queued.result()).text == "fine"
            assert "".join([delta.text async for delta in running]) == "b"
        await free(engine)


async def test_a_full_server_says_when_a_place_may_be_free():
    """By what answers and steps were lately."""
    async with serving(scripted_engine("a" * 90, step_seconds=0.02, max_num_requests=1)) as client:
        body = completion_body(max_tokens=100)
        assert (await client.post(COMPLETIONS, json=body)).status_code == 200
        async with client.stream("POST", COMPLETIONS, json=body | {"stream": True}) as running:
            chunks = running.aiter_raw()  # kept: the connection ends with it
            await anext(chunks)
            refusal = await client.post(COMPLETIONS, json=body)
            error_of(refusal, 503)
            milliseconds = int(refusal.headers["retry-after-ms"])
            assert 600 < milliseconds < 20_000  # about 1.8 s, on any machine
            assert int(refusal.headers["retry-after"]) == -(-milliseconds // 1000)


async def test_the_official_clients_raise_and_do_not_try_again():
    tries = 0

    def count(_step):
        nonlocal tries
        tries += 1

    async with serving(scripted_engine(Answers(otherwise=[Wait(0.3), "x"]), before_step=count)) as client:
        base = str(client.base_url)
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=3) as official:
            with pytest.raises(openai.InternalServerError) as raised:
                await official.chat.completions.create(model="scripted", messages=HI, extra_body={"max_ttft_ms": 30})
        assert raised.value.status_code == 504
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=3) as official:
            with pytest.raises(anthropic.APIStatusError) as refused:
                await official.messages.create(
                    model="scripted", messages=HI, max_tokens=5, extra_headers={"x-limelight-max-ttft-ms": "30"}
                )
        assert refused.value.status_code == 504
        assert refused.value.body["error"]["type"] == "timeout_error"
        metrics = (await client.get("/metrics")).text
    assert 'ending="expired"' in metrics
    assert 'reason="deadline_exceeded"' in metrics
    assert metrics.count("deadline_exceeded") >= 1


async def test_a_hundred_deadlines_at_random_moments_leave_nothing():
    async with scripted_engine("abcd" * 100, step_seconds=0.001, max_num_seqs=4, max_num_batched_tokens=64) as engine:

        async def one(number: int) -> str:
            limits = Deadlines(**{["max_queue_ms", "max_ttft_ms", "max_total_ms"][number % 3]: 1 + number * 3})
            asked = GenerationRequest(
                request_id=f"r{number}",
                prompt=TextPrompt("x" * (1 + number * 7 % 300)),
                sampling=SamplingParams(max_tokens=100, ignore_eos=True),
                deadlines=limits,
            )
            try:
                async with engine.open(asked) as stream:
                    return (await stream.result()).outputs[0].finish_details or "whole"
            except DeadlineExceeded as error:
                return str(error.param)

        endings: list[str] = []

        async def run(number: int) -> None:
            endings.append(await one(number))

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(run, number)
        await free(engine)
    assert len(endings) == 100
    assert {"max_queue_ms", "max_ttft_ms"} <= set(endings)
