"""Clients that know nothing of resuming read resumable streams as any others, keep-alives and progress included."""

from contextlib import asynccontextmanager

import anthropic
import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI

from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine
from tests.http.test_sse import Barrier
from tests.http.wire import HI, client_of

pytestmark = pytest.mark.anyio

ANSWER = "Grüße aus 東京 😀!"
HEADERS = {"x-limelight-resumable": "1", "x-limelight-progress": "1"}
KEEP_ALIVES = 3


@asynccontextmanager
async def silent_for_a_while():
    """Address of a server whose stream is silent after some tokens, until several keep-alives have gone out.

    The second value tells how many have.
    """
    barrier = Barrier(passing=4)
    counted = []

    async with scripted_engine(ANSWER, before_step=barrier) as engine:
        app = create_app(engine, settings=HttpSettings(keep_alive_seconds=0.02))

        async def counting(scope, receive, send):
            async def count(message):
                counted.extend([1] * message.get("body", b"").count(b": keep-alive\n"))
                if len(counted) >= KEEP_ALIVES:
                    barrier.open()
                await send(message)

            await app(scope, receive, count)

        async with client_of(counting) as client:
            yield str(client.base_url), counted


async def test_the_official_openai_client():
    async with (
        silent_for_a_while() as (address, counted),
        openai.AsyncOpenAI(
            base_url=f"{address}/v1",
            api_key="none",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
            default_headers=HEADERS,
        ) as api,
    ):
        async with api.chat.completions.stream(model="scripted", messages=HI) as stream:
            content = [event.delta async for event in stream if event.type == "content.delta"]
            final = await stream.get_final_completion()
        assert "".join(content) == final.choices[0].message.content == ANSWER
        assert len(counted) >= KEEP_ALIVES
        completion = await api.completions.create(model="scripted", prompt="hi", max_tokens=99, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in completion]) == ANSWER


async def test_langchain():
    async with silent_for_a_while() as (address, counted), httpx.AsyncClient(trust_env=False) as http:
        model = ChatOpenAI(
            model="scripted",
            base_url=f"{address}/v1",
            api_key="none",
            max_retries=0,
            http_async_client=http,
            default_headers=HEADERS,
        )
        pieces = [chunk.content async for chunk in model.astream("hi")]
    assert "".join(pieces) == ANSWER
    assert len(counted) >= KEEP_ALIVES


async def test_anthropics_client():
    async with (
        silent_for_a_while() as (address, counted),
        anthropic.AsyncAnthropic(
            base_url=address,
            api_key="none",
            max_retries=0,
            http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
            default_headers=HEADERS,
        ) as api,
        api.messages.stream(model="scripted", max_tokens=99, messages=HI) as stream,
    ):
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == message.content[0].text == ANSWER
    assert len(counted) >= KEEP_ALIVES
