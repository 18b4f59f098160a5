"""Tools and reasoning in chats: requests, whole answers and streams, as the official client and the wire see them."""

import json

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from limelight.http import HttpSettings
from limelight.models.text.chat_format import JinjaChatFormat
from limelight.parsing.answer_format import THINK, AnswerFormat
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, HI, chat_body, error_of
from tests.http.wire import streamed as streamed_chunks

pytestmark = pytest.mark.anyio

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
HERMES = AnswerFormat(
    tool_format="hermes", renders_tools=True, renders_calls=True, reasoning=THINK, reasoning_switch="enable_thinking"
)
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments }}]{% endfor %}\n"
    "{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


def hermes(script, **options):
    return scripted_engine(script, answer_format=HERMES, chat_format=JinjaChatFormat(TEMPLATE), **options)


class Capture:
    """A script that answers and keeps the prompt."""

    def __init__(self, answer):
        self.answer = answer.encode()
        self.prompts = []

    def __call__(self, turn):
        if turn.number == 0:
            self.prompts.append(bytes(turn.prompt).decode())
        return self.answer[turn.number] if turn.number < len(self.answer) else 256


async def both(client, **fields):
    """The first choice, whole, and the same put together from a stream: message, finish reason, entries of tokens."""
    whole = (await client.post(CHAT, json=chat_body(**fields))).json()["choices"][0]
    response = await client.post(CHAT, json=chat_body(stream=True, **fields))
    assert response.status_code == 200, response.text
    message, entries, reason = {"role": None, "content": "", "tool_calls": []}, [], None
    for event in streamed_chunks(response):
        for choice in event["choices"]:
            delta = choice["delta"]
            assert reason is None, "nothing follows the final chunk"
            reason = choice["finish_reason"]
            message["role"] = delta.get("role", message["role"])
            for name in ("content", "reasoning"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name]
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    assert call.keys() == {"index", "id", "type", "function"}
                    assert call["function"].keys() == {"name", "arguments"}
                    assert call["function"]["arguments"] == ""
                    message["tool_calls"].append({**call, "function": dict(call["function"])})
                else:
                    assert call.keys() == {"index", "function"}
                    assert call["function"].keys() == {"arguments"}
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            entries += (choice["logprobs"] or {"content": []})["content"]
    return whole, message, reason, entries


def calls_of(message):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


async def test_calls_whole_and_streamed_are_the_same(serve):
    async with serve(hermes(CALLS)) as client:
        whole, streamed, reason, entries = await both(client, tools=[WEATHER, NOW], logprobs=True)
    assert whole["message"]["content"] == streamed["content"] == "Let me see."
    assert calls_of(whole["message"]) == [("get_weather", '{"city": "Zürich"}'), ("now", "{}")]
    assert calls_of(streamed) == calls_of(whole["message"])
    assert whole["finish_reason"] == reason == "tool_calls"
    assert entries == whole["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == CALLS
    ids = [call["id"] for message in (whole["message"], streamed) for call in message["tool_calls"]]
    assert len(set(ids)) == 4
    assert all(name.startswith("call_") for name in ids)
    assert [call["index"] for call in streamed["tool_calls"]] == [0, 1]


async def test_content_is_null_when_there_are_only_calls(serve):
    async with serve(hermes('<tool_call>{"name": "now", "arguments": {}}</tool_call>')) as client:
        message = (await client.post(CHAT, json=chat_body(tools=[NOW]))).json()["choices"][0]["message"]
        assert message["content"] is None
        plain = (await client.post(CHAT, json=chat_body())).json()["choices"][0]["message"]
    assert plain["content"] == '<tool_call>{"name": "now", "arguments": {}}</tool_call>', "no tools, no calls"
    assert "tool_calls" not in plain


async def test_text_streams_although_there_are_tools(serve):
    async with serve(hermes("An ordinary answer, with a < b.")) as client:
        response = await client.post(CHAT, json=chat_body(tools=[NOW], stream=True))
    deltas = [event["choices"][0]["delta"] for event in streamed_chunks(response)]
    assert sum("content" in delta for delta in deltas) > 20
    assert "".join(delta.get("content", "") for delta in deltas) == "An ordinary answer, with a < b."


async def test_at_most_one_call_unless_parallel_calls_are_wanted(serve):
    async with serve(hermes(CALLS)) as client:
        whole, streamed, _, _ = await both(client, tools=[WEATHER, NOW], parallel_tool_calls=False)
    assert [name for name, _ in calls_of(whole["message"])] == ["get_weather"]
    assert calls_of(streamed) == calls_of(whole["message"])


def unwilling(written):
    """A script that does not begin with what is wanted of it; where only one token may come, it comes all the same."""
    return lambda turn: 33 if turn.number < 5 else [*written.encode(), 256][min(turn.number, len(written))]


JSON_LIST = '[{"name": "get_weather", "parameters": {"city": "A"}}]'
IN_HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "A"}}\n</tool_call>'
IN_LLAMA = '{"name": "get_weather", "parameters": {"city": "A"}}'
IN_DEEPSEEK = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "A"}<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>"
)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize(
    ("tool_format", "written"),
    [
        ("hermes", IN_HERMES),
        ("llama3_json", IN_LLAMA),
        ("deepseek_v31", IN_DEEPSEEK),
        ("pythonic", JSON_LIST),
        (None, JSON_LIST),
    ],
)
async def test_a_call_that_must_be_made_is_made_by_any_model(serve, choice, tool_format, written):
    named = choice != "required"
    answers = AnswerFormat(tool_format=tool_format, renders_tools=tool_format is not None)
    script = unwilling(written) if tool_format != "deepseek_v31" else written
    async with serve(scripted_engine(script, answer_format=answers)) as client:
        whole, streamed, reason, _ = await both(
            client, tools=[WEATHER], tool_choice=choice, max_tokens=400, parallel_tool_calls=False
        )
    assert whole["finish_reason"] == reason == ("stop" if named else "tool_calls")
    ((name, arguments),) = calls_of(whole["message"])
    assert name == "get_weather"
    assert json.loads(arguments) == {"city": "A"}
    assert calls_of(streamed) == [(name, arguments)]
    assert whole["message"]["content"] is None


async def test_a_model_without_tools_in_its_template_is_told_of_them(serve):
    script = Capture("x")
    async with serve(scripted_engine(script, answer_format=AnswerFormat())) as client:
        await client.post(CHAT, json=chat_body(tools=[WEATHER], tool_choice="required", max_tokens=4))
        auto = await client.post(CHAT, json=chat_body(tools=[WEATHER]))
        assert auto.json()["choices"][0]["message"]["content"] == "x"
        none = await client.post(CHAT, json=chat_body(tools=[WEATHER], tool_choice="none"))
        assert none.json()["choices"][0]["message"]["content"] == "x"
    assert script.prompts[0].startswith('system: These functions can be called:\n{"name": "get_weather"')
    assert "answer as usual:\n<tool_call>" in script.prompts[1]
    assert script.prompts[2] == "user: hi\nassistant:"


async def test_a_model_that_was_told_of_tools_may_call_one(serve):
    async with serve(scripted_engine(CALLS, answer_format=AnswerFormat())) as client:
        whole, streamed, reason, _ = await both(client, tools=[WEATHER, NOW])
    assert whole["finish_reason"] == reason == "tool_calls"
    assert calls_of(whole["message"]) == calls_of(streamed) != []


async def test_tools_in_a_format_that_is_not_known_are_refused_under_auto(serve):
    async with serve(
        scripted_engine("x", answer_format=AnswerFormat(renders_tools=True, renders_calls=True))
    ) as client:
        error = error_of(await client.post(CHAT, json=chat_body(tools=[WEATHER])), 400)
        assert error["param"] == "tool_choice"
        assert "required" in error["message"]


async def test_a_call_that_the_limit_cuts_off_says_so(serve):
    async with serve(hermes(CALLS)) as client:
        whole, streamed, reason, _ = await both(client, tools=[WEATHER], max_tokens=70)
    assert whole["finish_reason"] == reason == "length"
    assert calls_of(whole["message"]) == calls_of(streamed)
    assert calls_of(streamed)[0][1].startswith('{"city"')


async def test_what_is_left_of_a_call_that_had_to_be_made_is_no_text(serve):
    two = '[{"name": "now", "parameters": {}}, {"name": "now", "parameters": {}}]'
    async with serve(scripted_engine(two)) as client:
        for limit in (3, 40):
            whole, streamed, reason, _ = await both(client, tools=[NOW], tool_choice="required", max_tokens=limit)
            assert reason == whole["finish_reason"] == "length"
            assert not whole["message"]["content"]
            assert streamed["content"] == ""
    assert calls_of(whole["message"]) == calls_of(streamed) == [("now", "{}")]


async def test_the_first_form_of_tools(serve):
    async with serve(hermes(CALLS)) as client:
        fields = {"functions": [WEATHER["function"], NOW["function"]], "function_call": "auto"}
        whole = (await client.post(CHAT, json=chat_body(**fields))).json()["choices"][0]
        response = await client.post(CHAT, json=chat_body(stream=True, **fields))
        error = error_of(await client.post(CHAT, json=chat_body(tools=[NOW], **fields)), 400)
    assert whole["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
    assert whole["finish_reason"] == "function_call"
    deltas = [event["choices"][0]["delta"].get("function_call") for event in streamed_chunks(response)]
    pieces = [delta for delta in deltas if delta]
    assert pieces[0] == {"arguments": "", "name": "get_weather"}
    assert "".join(piece["arguments"] for piece in pieces) == '{"city": "Zürich"}'
    assert error["param"] == "functions"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f", "parameters": "str"}}]}, "tools[0].function.parameters"),
        (
            {"tools": [NOW, {"function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[1].function.parameters",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "then"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "detokenize": False}, "detokenize"),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"functions": [{"name": "f", "parameters": {"type": 1}}]}, "functions[0].parameters"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "text"}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "response_format"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_name(serve, fields, param):
    async with serve(hermes("x")) as client:
        assert error_of(await client.post(CHAT, json=chat_body(**fields)), 400)["param"] == param


async def test_history_with_calls_reaches_the_template(serve):
    calling = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "12:00"}
    prompts = []
    for content in ({}, {"content": None}, {"content": ""}):
        for engine_format in (HERMES, AnswerFormat()):
            script = Capture("x")
            chat_format = JinjaChatFormat(TEMPLATE) if engine_format is HERMES else None
            engine = scripted_engine(script, answer_format=engine_format, chat_format=chat_format)
            async with serve(engine) as client:
                answer = await client.post(CHAT, json=chat_body(messages=[*HI, {**calling, **content}, result, *HI]))
                assert answer.status_code == 200, answer.text
            prompts.append(script.prompts[0])
    assert prompts[0::2] == [prompts[0]] * 3
    assert prompts[1::2] == [prompts[1]] * 3
    assert "[now {}]" in prompts[0]
    assert '"now"' in prompts[1]
    assert "user: Result of now:\n12:00" in prompts[1]
    assert "None" not in prompts[0] + prompts[1]


async def test_broken_arguments_in_the_history_are_passed_on(serve):
    for arguments in ('{"path": "a.txt", "con', "", "null"):
        call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}
        messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}, *HI]
        async with serve(hermes("fine")) as client:
            answer = await client.post(CHAT, json=chat_body(messages=messages, tools=[NOW]))
            assert answer.json()["choices"][0]["message"]["content"] == "fine", arguments


# ---- reasoning


async def test_reasoning_is_a_field_of_its_own(serve):
    async with serve(hermes("<think>\nHm.\n</think>\n\nHello.")) as client:
        whole, streamed, _, _ = await both(client)
        usage = (await client.post(CHAT, json=chat_body())).json()["usage"]
        hidden, hidden_stream, _, entries = await both(client, include_reasoning=False, logprobs=True)
    assert (whole["message"]["reasoning"], whole["message"]["content"]) == ("Hm.", "Hello.")
    assert (streamed["reasoning"], streamed["content"]) == ("Hm.", "Hello.")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("<think>\nHm.\n</think>")
    assert "reasoning" not in hidden["message"] | hidden_stream
    assert hidden["message"]["content"] == hidden_stream["content"] == "Hello."
    assert entries == hidden["logprobs"]["content"]


async def test_the_name_of_the_reasoning_is_a_setting(serve):
    async with serve(hermes("<think>a</think>b"), HttpSettings(reasoning_field="reasoning_content")) as client:
        whole = (await client.post(CHAT, json=chat_body())).json()["choices"][0]["message"]
        stream = await client.post(CHAT, json=chat_body(stream=True))
    assert whole["reasoning_content"] == "a"
    assert "reasoning" not in whole
    assert [
        d["reasoning_content"]
        for e in streamed_chunks(stream)
        if "reasoning_content" in (d := e["choices"][0]["delta"])
    ] == ["a"]


async def test_reasoning_is_switched_through_the_template(serve):
    script = Capture("Hello.")
    async with serve(hermes(script)) as client:
        for fields in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            await client.post(CHAT, json=chat_body(**fields))
        await client.post(CHAT, json=chat_body(reasoning_effort="low"))
        await client.post(CHAT, json=chat_body(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}))
    assert [prompt.endswith("<think></think>") for prompt in script.prompts] == [True, True, False, False]
    no_switch = AnswerFormat(reasoning=THINK)
    async with serve(scripted_engine("x", answer_format=no_switch)) as client:
        assert (
            error_of(await client.post(CHAT, json=chat_body(reasoning_effort="none")), 400)["param"]
            == "reasoning_effort"
        )


async def test_reasoning_and_calls_in_one_answer(serve):
    async with serve(hermes("<think>Now?</think>\n" + CALLS)) as client:
        whole, streamed, reason, _ = await both(client, tools=[WEATHER, NOW])
    assert (whole["message"]["reasoning"], whole["message"]["content"], reason) == ("Now?", "Let me see.", "tool_calls")
    assert streamed["reasoning"] == "Now?"
    assert calls_of(streamed) == calls_of(whole["message"])


# ---- the form of answers


class Person(BaseModel):
    name: str
    tall: bool


async def test_a_form_beside_tools_allows_both(serve):
    body = chat_body(tools=[NOW], response_format={"type": "json_object"}, max_tokens=200)
    async with serve(hermes('{"a": 1}')) as client:
        assert (await client.post(CHAT, json=body)).json()["choices"][0]["message"]["content"] == '{"a": 1}'
    async with serve(hermes('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')) as client:
        assert calls_of((await client.post(CHAT, json=body)).json()["choices"][0]["message"]) == [("now", "{}")]


async def test_strict_tools_keep_to_their_schema_when_the_model_chooses(serve):
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    script = '<tool_call>\n{"name": "get_weather", "arguments": {"town": 1'
    async with serve(hermes(script)) as client:
        whole, streamed, _, _ = await both(client, tools=[strict], max_tokens=300)
    arguments = calls_of(streamed)[0][1]
    assert arguments.startswith('{"city"')
    assert calls_of(whole["message"]) == calls_of(streamed)


# ---- the official client


@pytest.fixture
async def openai_client(serve):
    async with (
        serve(hermes("<think>Hm.</think>" + CALLS)) as client,
        AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as official,
    ):
        yield official


async def test_the_streaming_helper_builds_the_same_message(openai_client):
    arguments = {"model": "scripted", "messages": HI, "tools": [WEATHER, NOW]}
    whole = await openai_client.chat.completions.create(**arguments)
    async with openai_client.chat.completions.stream(**arguments) as stream:
        kinds = {event.type async for event in stream}
        streamed = (await stream.get_final_completion()).choices[0].message
    message = whole.choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds
    assert streamed.content == message.content
    assert [call.function.arguments for call in streamed.tool_calls] == [
        call.function.arguments for call in message.tool_calls
    ]
    assert message.reasoning == "Hm."
    history = [*HI, message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12"}]
    again = await openai_client.chat.completions.create(model="scripted", messages=history, tools=[WEATHER, NOW])
    assert again.choices[0].finish_reason == "tool_calls"


async def test_parse_gives_an_object(serve):
    async with (
        serve(scripted_engine('{"name": "A", "tall": true} and more')) as client,
        AsyncOpenAI(base_url=str(client.base_url) + "/v1", api_key="none", max_retries=0) as official,
    ):
        answer = await official.chat.completions.parse(
            model="scripted", messages=HI, response_format=Person, max_tokens=200
        )
    assert answer.choices[0].message.parsed == Person(name="A", tall=True), "nothing follows the object"
