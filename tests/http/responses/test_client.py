"""The official client, unchanged, against a real socket."""

import anyio
import anyio.lowlevel
import openai
import pytest
from pydantic import BaseModel

from limelight.http import HttpSettings
from limelight.parsing.answer_format import THINK, AnswerFormat
from limelight.testing import scripted_engine
from tests.http.responses.wire import plain
from tests.http.test_openai_client import official

pytestmark = pytest.mark.anyio

ANSWER = "Grüße aus 東京 😀!"
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES = AnswerFormat(reasoning=THINK, tool_format="hermes", renders_tools=True, renders_calls=True)


class Answer(BaseModel):
    city: str
    population: int


async def test_whole_and_streamed_give_the_same_response():
    engine = scripted_engine(f"<think>hm, hm</think>{ANSWER}", answer_format=HERMES)
    async with official(engine) as api:
        whole = await api.responses.create(model="scripted", input="hi")
        async with api.responses.stream(model="scripted", input="hi") as stream:
            told = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
    assert whole.output_text == final.output_text == "".join(told) == ANSWER
    assert [item.type for item in whole.output] == [item.type for item in final.output] == ["reasoning", "message"]
    assert whole.output[0].content[0].text == final.output[0].content[0].text == "hm, hm"
    assert whole.usage.output_tokens_details.reasoning_tokens == final.usage.output_tokens_details.reasoning_tokens > 0
    assert whole.status == final.status == "completed"


async def test_log_probabilities_are_those_of_the_text():
    engine = scripted_engine(f"<think>hm, hm</think>{ANSWER}", answer_format=HERMES)
    async with official(engine) as api:
        asked = {"model": "scripted", "input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
        whole = await api.responses.create(**asked)
        async with api.responses.stream(**asked) as stream:
            final = await stream.get_final_response()
    for response in (whole, final):
        entries = response.output[1].content[0].logprobs
        assert bytes(byte for entry in entries for byte in entry.bytes).startswith(ANSWER.encode())
    assert whole.output[1].content[0].logprobs == final.output[1].content[0].logprobs


async def test_a_pydantic_model_is_filled_whole_and_streamed():
    text = '{"city": "Paris", "population": 2100000}'
    async with official(scripted_engine(text)) as api:
        parsed = await api.responses.parse(model="scripted", input="hi", text_format=Answer)
        async with api.responses.stream(model="scripted", input="hi", text_format=Answer) as stream:
            final = await stream.get_final_response()
    assert parsed.output_parsed == final.output_parsed == Answer(city="Paris", population=2100000)
    assert parsed.text.format.schema_["properties"].keys() == {"city", "population"}


async def test_the_form_binds_a_model_that_says_something_else():
    async with official(scripted_engine('[1] {"city": 5}')) as api:
        text_format = {"type": "json_schema", "name": "n", "schema": {"enum": ["yes", "no"]}}
        bound = await api.responses.create(model="scripted", input="hi", text={"format": text_format})
    assert bound.output_text in ('"yes"', '"no"')


def weather_script(turn):
    """Calls the tool, and answers when its result is there."""
    text = "It is sunny." if b"sunny" in bytes(token for token in turn.prompt if token < 256) else CALL
    return text.encode()[turn.number] if turn.number < len(text) else 256


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_tool_makes_its_way_there_and_back(keeps):
    async with official(scripted_engine(weather_script, answer_format=HERMES)) as api:
        asked = [{"role": "user", "content": "How is the weather in Paris?"}]
        first = await api.responses.create(model="scripted", input=asked, tools=[TOOL], store=keeps)
        async with api.responses.stream(model="scripted", input=asked, tools=[TOOL]) as stream:
            told = [event async for event in stream if event.type == "response.function_call_arguments.done"]
            streamed = await stream.get_final_response()
        (call,) = first.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        if keeps:
            again = {"input": [result], "previous_response_id": first.id}
        else:
            again = {"input": [*asked, *(item.model_dump() for item in first.output), result]}
        raw = await api.responses.with_raw_response.create(model="scripted", tools=[TOOL], **again)
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Paris"}')
    assert plain([streamed.output[0].to_dict()])[0]["arguments"] == told[0].arguments == call.arguments
    assert streamed.output[0].parsed_arguments == {"city": "Paris"}
    assert "x-limelight-ignored-fields" not in raw.headers
    assert raw.parse().output_text == "It is sunny."


async def test_a_tool_can_be_made_to_be_called():
    async with official(scripted_engine('[{"name": "weather", "parameters": {"city": "Rome"}}]')) as api:
        for choice in ("required", {"type": "function", "name": "weather"}):
            forced = await api.responses.create(model="scripted", input="hi", tools=[TOOL], tool_choice=choice)
            assert [(item.type, item.name, item.arguments) for item in forced.output] == [
                ("function_call", "weather", '{"city": "Rome"}')
            ]
            assert forced.status == "completed"


async def test_a_custom_tool_gets_text():
    call = '<tool_call>\n{"name": "python", "arguments": {"input": "print(1)"}}\n</tool_call>'
    tool = {"type": "custom", "name": "python", "description": "Runs Python"}
    async with official(scripted_engine(call, answer_format=HERMES)) as api:
        response = await api.responses.create(model="scripted", input="hi", tools=[tool])
        async with api.responses.stream(model="scripted", input="hi", tools=[tool]) as stream:
            final = await stream.get_final_response()
        output = {"type": "custom_tool_call_output", "call_id": response.output[0].call_id, "output": "1"}
        items = [*(item.model_dump() for item in response.output), output]
        raw = await api.responses.with_raw_response.create(model="scripted", input=items, tools=[tool])
    assert "x-limelight-ignored-fields" not in raw.headers
    for item in (response.output[0], final.output[0]):
        assert (item.type, item.name, item.input) == ("custom_tool_call", "python", "print(1)")


async def test_everything_that_an_answer_holds_can_be_sent_back():
    script = f"<think>hm</think>text {CALL}"
    async with official(scripted_engine(script, answer_format=HERMES)) as api:
        first = await api.responses.create(
            model="scripted", input="hi", tools=[TOOL], include=["message.output_text.logprobs"]
        )
        parsed = await api.responses.parse(model="scripted", input="hi", tools=[TOOL])
        calls = [
            item.call_id for response in (first, parsed) for item in response.output if item.type == "function_call"
        ]
        items = [item.model_dump() for response in (first, parsed) for item in response.output]
        outputs = [{"type": "function_call_output", "call_id": call_id, "output": "1"} for call_id in calls]
        raw = await api.responses.with_raw_response.create(model="scripted", input=[*items, *outputs], tools=[TOOL])
        listed = [item async for item in api.responses.input_items.list(raw.parse().id, limit=2, order="asc")]
        referred = await api.responses.create(
            model="scripted",
            input=[{"type": "item_reference", "id": first.output[1].id}, {"role": "user", "content": "x"}],
        )
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert "x-limelight-ignored-fields" not in raw.headers
    assert [item.type for item in listed] == [
        *["reasoning", "message", "function_call"] * 2,
        *["function_call_output"] * 2,
    ]
    assert [item.id for item in listed[:3]] == [item.id for item in first.output]
    assert referred.status == "completed"


async def test_a_response_is_fetched_followed_cancelled_and_deleted():
    async with official(scripted_engine(step_seconds=0.001)) as api:
        queued = await api.responses.create(model="scripted", input="hi", background=True, max_output_tokens=40)
        with anyio.fail_after(60):
            while (response := await api.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
                await anyio.lowlevel.checkpoint()
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        followed = [event async for event in await api.responses.retrieve(queued.id, stream=True, starting_after=5)]
        assert [event.sequence_number for event in followed] == list(range(6, 6 + len(followed)))
        assert followed[-1].response == response
        async with api.responses.stream(response_id=queued.id, starting_after=3) as stream:
            events = [event async for event in stream]
        assert events[0].sequence_number == 4
        endless = await api.responses.create(model="scripted", input="hi", background=True)
        assert (await api.responses.cancel(endless.id)).status == "cancelled"
        await api.responses.delete(queued.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(queued.id)


async def test_errors_become_the_clients_own_exceptions():
    async with official(scripted_engine(max_model_len=64)) as api:
        with pytest.raises(openai.BadRequestError) as bad:
            await api.responses.create(model="scripted", input="hi", temperature=9)
        assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as missing:
                await api.responses.create(model="nope", input="hi", stream=stream)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as long:
                await api.responses.create(model="scripted", input="x" * 100, stream=stream)
            assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            await api.responses.create(model="scripted", input="hi", previous_response_id="resp_0")
    async with official(scripted_engine(), HttpSettings(api_keys={"ann": "secret"})) as api:
        with pytest.raises(openai.AuthenticationError):
            await api.responses.create(model="scripted", input="hi")
