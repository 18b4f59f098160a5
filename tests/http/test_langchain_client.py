"""LangChain's `ChatOpenAI`, unchanged, against a real socket: over chat completions and over responses."""

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from limelight.http import HttpSettings
from limelight.parsing.answer_format import AnswerFormat
from limelight.testing import END, scripted_engine
from tests.http.test_sse import Barrier
from tests.http.wire import serving

pytestmark = pytest.mark.anyio

ANSWER = "Grüße aus 東京 😀!"
APIS = ["chat", "responses"]
HERMES = AnswerFormat(tool_format="hermes", renders_tools=True, renders_calls=True)
RESUMABLE = {"x-limelight-resumable": "1"}


class Sum(BaseModel):
    """Two numbers."""

    a: int
    b: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def call(**arguments):
    return f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': arguments})}\n</tool_call>"


@asynccontextmanager
async def chat_model(engine, api="chat", settings=None, **options):
    """LangChain's model over a server of ours."""
    async with serving(engine, settings) as client, httpx.AsyncClient(trust_env=False, timeout=30) as http:
        yield ChatOpenAI(
            model="scripted",
            base_url=f"{client.base_url}/v1",
            api_key="none",
            max_retries=0,
            http_async_client=http,
            use_responses_api=api == "responses",
            **options,
        )


async def streamed(model, messages):
    """All chunks, and their sum."""
    chunks = [chunk async for chunk in model.astream(messages)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return chunks, whole


@pytest.mark.parametrize("api", APIS)
async def test_whole_and_streamed_give_the_same_message_and_usage(api):
    async with chat_model(scripted_engine(ANSWER), api, stream_usage=True) as model:
        whole = await model.ainvoke([SystemMessage("be brief"), HumanMessage("hi")])
        chunks, added = await streamed(model, [SystemMessage("be brief"), HumanMessage("hi")])
    assert whole.text == added.text == ANSWER
    assert sum(bool(chunk.text) for chunk in chunks) > 3
    assert whole.usage_metadata["output_tokens"] == added.usage_metadata["output_tokens"] == len(ANSWER.encode()) + 1
    assert whole.usage_metadata["input_tokens"] == added.usage_metadata["input_tokens"] > 0
    assert added.usage_metadata["input_token_details"]["cache_read"] > 0
    assert whole.response_metadata["model_name"] == added.response_metadata["model_name"] == "scripted"


async def test_log_probabilities_come_with_the_message():
    async with chat_model(scripted_engine("ab"), logprobs=True, top_logprobs=2) as model:
        whole = await model.ainvoke("hi")
        _, added = await streamed(model, "hi")
    told = whole.response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in told] == ["a", "b", "<|end|>"]
    assert [len(entry["top_logprobs"]) for entry in told] == [2, 2, 2]
    assert [entry["token"] for entry in added.response_metadata["logprobs"]["content"]] == ["a", "b", "<|end|>"]


async def test_settings_reach_the_model():
    seen = []

    def listen(turn):
        seen.append(turn.sampling)
        return END

    async with chat_model(scripted_engine(listen), temperature=0.3, seed=7, frequency_penalty=0.5, top_p=0.8) as model:
        await model.ainvoke("hi")
    assert [seen[0].temperature, seen[0].frequency_penalty, seen[0].top_p] == pytest.approx([0.3, 0.5, 0.8])


async def test_many_conversations_at_once_keep_their_own_answers():
    def last_word(turn):
        said = bytes(token for token in turn.prompt if token < END).decode().split("\n")[-2].split()[-1]
        return said.encode()[turn.number] if turn.number < len(said) else END

    async with chat_model(scripted_engine(last_word)) as model:
        answers = await model.abatch([f"say w{number}" for number in range(30)])
    assert [answer.content for answer in answers] == [f"w{number}" for number in range(30)]


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_with_results_of_tools_reaches_the_template(api):
    heard = []

    def listen(turn):
        heard.append(bytes(token for token in turn.prompt if token < END).decode())
        return END

    messages = [
        HumanMessage("1 + 2?"),
        AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "call_1"}]),
        ToolMessage("3", tool_call_id="call_1"),
        HumanMessage("sure?"),
    ]
    async with chat_model(scripted_engine(listen, answer_format=HERMES), api) as model:
        await model.ainvoke(messages)
    lines = heard[0].split("\n")
    assert [line for line in lines if line.startswith(("user", "tool"))] == ["user: 1 + 2?", "tool: 3", "user: sure?"]
    assert lines[-1] == "assistant:"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("text", ["", "I add."])
async def test_a_tool_is_called_whole_and_streamed(api, text):
    answer = f"{text}{call(a=1, b=2)}"
    async with chat_model(scripted_engine(answer, answer_format=HERMES), api) as model:
        bound = model.bind_tools([add])
        whole = await bound.ainvoke("1 + 2?")
        chunks, added = await streamed(bound, "1 + 2?")
    for message in (whole, added):
        [found] = message.tool_calls
        assert (found["name"], found["args"], message.text) == ("add", {"a": 1, "b": 2}, text)
        assert add.invoke(found).content == "3"
        assert found["id"]
        assert message.invalid_tool_calls == []
    assert sum(bool(chunk.tool_call_chunks) for chunk in chunks) > 1


@pytest.mark.parametrize("api", APIS)
async def test_several_calls_of_one_answer_stay_apart(api):
    engine = scripted_engine(f"{call(a=1, b=2)}\n{call(a=3, b=4)}", answer_format=HERMES)
    async with chat_model(engine, api) as model:
        bound = model.bind_tools([add])
        whole = await bound.ainvoke("go")
        _, added = await streamed(bound, "go")
    for message in (whole, added):
        assert [found["args"] for found in message.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert len({found["id"] for found in message.tool_calls}) == 2


@pytest.mark.parametrize("api", APIS)
async def test_a_call_its_result_and_the_answer_to_it_are_one_conversation(api):
    def answer(turn):
        text = "three" if b"tool: 3" in bytes(token for token in turn.prompt if token < END) else call(a=1, b=2)
        return text.encode()[turn.number] if turn.number < len(text) else END

    async with chat_model(scripted_engine(answer, answer_format=HERMES), api) as model:
        bound = model.bind_tools([add])
        messages = [HumanMessage("1 + 2?")]
        messages.append(await bound.ainvoke(messages))
        messages += [await add.ainvoke(found) for found in messages[-1].tool_calls]
        final = await bound.ainvoke(messages)
    assert final.text == "three"
    assert final.tool_calls == []


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("choice", ["any", "add"])
async def test_a_tool_that_must_be_called_is_called(api, choice):
    async with chat_model(scripted_engine(call(a=1, b=2), answer_format=HERMES), api) as model:
        message = await model.bind_tools([add], tool_choice=choice).ainvoke("1 + 2?")
    assert [(found["name"], found["args"]) for found in message.tool_calls] == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_structured_output_is_of_its_class(api, method):
    text = call(a=1, b=2) if method == "function_calling" else '{"a": 1, "b": 2}'
    async with chat_model(scripted_engine(text, answer_format=HERMES), api) as model:
        found = await model.with_structured_output(Sum, method=method).ainvoke("1 + 2 as JSON?")
    assert found == Sum(a=1, b=2)


@pytest.mark.parametrize("api", APIS)
async def test_resumable_streams_with_keep_alives_are_read_as_any_other(api):
    barrier = Barrier()
    settings = HttpSettings(header_wait_seconds=0, keep_alive_seconds=0.02)
    engine = scripted_engine(ANSWER, before_step=barrier)
    async with chat_model(engine, api, settings, default_headers=RESUMABLE) as model:
        stream = model.astream("hi")
        barrier.open()
        text = "".join([chunk.text async for chunk in stream])
    assert text == ANSWER
