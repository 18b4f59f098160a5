"""The official client, unchanged, against a real socket."""

from contextlib import asynccontextmanager

import openai
import pytest

from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.http.test_sse import Barrier
from tests.http.wire import CHAT, HI, serving

pytestmark = pytest.mark.anyio

ANSWER = "Grüße aus 東京 😀!"


@asynccontextmanager
async def official(engine, settings=None, **options):
    async with (
        serving(engine, settings) as client,
        openai.AsyncOpenAI(
            base_url=f"{client.base_url}/v1",
            api_key="none",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
            **options,
        ) as api,
    ):
        yield api


async def test_chat_whole_and_streamed_give_the_same_message():
    async with official(scripted_engine(ANSWER)) as api:
        whole = await api.chat.completions.create(model="scripted", messages=HI, n=2)
        async with api.chat.completions.stream(
            model="scripted", messages=HI, n=2, stream_options={"include_usage": True}
        ) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
    for one, other in zip(whole.choices, final.choices, strict=True):
        assert one.message.content == other.message.content == ANSWER
        assert (
            (one.message.role, one.finish_reason) == (other.message.role, other.finish_reason) == ("assistant", "stop")
        )
    assert final.usage.completion_tokens == whole.usage.completion_tokens
    assert final.usage.prompt_tokens == whole.usage.prompt_tokens


async def test_completions_whole_and_streamed_give_the_same_text():
    async with official(scripted_engine(ANSWER)) as api:
        options = {"model": "scripted", "prompt": ["a", "b"], "max_tokens": 100, "logprobs": 1}
        whole = await api.completions.create(**options)
        texts = {}
        async for chunk in await api.completions.create(**options, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert [choice.text for choice in whole.choices] == [texts[0], texts[1]] == [ANSWER, ANSWER]
    assert len(whole.choices[0].logprobs.tokens) == len(whole.choices[0].logprobs.text_offset)


async def test_an_answer_can_be_sent_back_as_it_came():
    async with official(scripted_engine("fine")) as api:
        message = (await api.chat.completions.create(model="scripted", messages=HI)).choices[0].message
        async with api.chat.completions.stream(model="scripted", messages=HI) as stream:
            streamed_message = (await stream.get_final_completion()).choices[0].message
        messages = [*HI, message.model_dump(), *HI, message, *HI, streamed_message.model_dump()]
        raw = await api.chat.completions.with_raw_response.create(model="scripted", messages=messages)
    assert "x-limelight-ignored-fields" not in raw.headers
    assert raw.parse().choices[0].message.content == "fine"


async def test_every_message_form_is_understood():
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "s", "name": "n"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": "v"}], "name": "n"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "t", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "content": "r", "name": "f"},
        {"role": "assistant", "content": None, "refusal": "no", "annotations": [], "audio": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "reasoning": "why"},
        {"role": "user", "content": "end"},
    ]
    heard = []

    def listen(turn):
        heard.append(bytes(turn.prompt).decode())
        return 256

    async with official(scripted_engine(listen)) as api:
        raw = await api.chat.completions.with_raw_response.create(model="scripted", messages=messages)
    assert "x-limelight-ignored-fields" not in raw.headers
    call = '[{"name": "f", "parameters": {}}]'  # as text: the template knows of no tools
    lines = (
        f"system: s|system: d|user: u|v|assistant: {call}|user: Result of f:|t|assistant: {call}|user: Result of f:|r"
        "|assistant: no|assistant: no|user: end"
    )
    assert heard == [lines.replace("|", "\n") + "\nassistant:"]


async def test_keep_alive_comments_do_not_disturb_the_client():
    barrier = Barrier()
    settings = HttpSettings(header_wait_seconds=0, keep_alive_seconds=0.02)
    async with official(scripted_engine("late", before_step=barrier), settings) as api:
        stream = await api.chat.completions.create(model="scripted", messages=HI, stream=True)
        barrier.open()
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "late"


async def test_errors_become_the_clients_own_exceptions():
    async with official(scripted_engine(max_model_len=64)) as api:
        with pytest.raises(openai.BadRequestError) as bad:
            await api.chat.completions.create(model="scripted", messages=HI, temperature=9)
        assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
        assert bad.value.request_id
        with pytest.raises(openai.NotFoundError) as missing:
            await api.chat.completions.create(model="nope", messages=HI, stream=True)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            await api.completions.create(model="scripted", prompt="x" * 100, stream=True)
        assert long.value.code == "context_length_exceeded"
        assert [model.id async for model in api.models.list()] == ["scripted"]
        assert (await api.models.retrieve("scripted")).id == "scripted"
    async with official(scripted_engine(), HttpSettings(api_keys={"a": "key"})) as api:
        with pytest.raises(openai.AuthenticationError):
            await api.models.list()


async def test_a_failure_in_mid_stream_is_raised_by_the_client():
    def fail(step):
        if step.number == 4:
            raise RuntimeError

    async with official(scripted_engine(before_step=fail)) as api:
        stream = await api.chat.completions.create(model="scripted", messages=HI, stream=True)
        with pytest.raises(openai.APIError) as failure:
            async for _ in stream:
                pass
    assert failure.value.code == "step_failed"


async def test_the_client_retries_a_full_server_by_itself():
    barrier = Barrier()
    engine = scripted_engine(before_step=barrier, max_num_requests=1)
    async with official(engine, HttpSettings(header_wait_seconds=0)) as api:
        stream = await api.chat.completions.create(model="scripted", messages=HI, stream=True, max_tokens=1)
        with pytest.raises(openai.InternalServerError) as full:
            await api.chat.completions.create(model="scripted", messages=HI)
        assert full.value.code == "overloaded"
        barrier.open()
        async for _ in stream:
            pass
        answer = await api.with_options(max_retries=3).chat.completions.create(
            model="scripted", messages=HI, max_tokens=1
        )
    assert answer.choices[0].finish_reason == "length"
    assert CHAT.endswith("chat/completions")
