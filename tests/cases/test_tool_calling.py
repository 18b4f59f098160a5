"""What has gone wrong elsewhere with calls of tools: a scripted model writes them, and the default one must.

Cases: B041, B043, B044, B045, B046, B048, B050.
"""

import json

import pytest

from limelight.parsing.answer_format import AnswerFormat
from limelight.testing import scripted_engine
from tests.cases.small_engines import chat, default_engine, model_client
from tests.http.wire import CHAT, by_choice, chat_body, serving, streamed

pytestmark = pytest.mark.anyio

HERMES = AnswerFormat(tool_format="hermes", renders_tools=True, renders_calls=True)
ONE = '<tool_call>\n{"name": "find", "arguments": {"city": "Zürich"}}\n</tool_call>'
TWO = f'{ONE}\n<tool_call>\n{{"name": "find", "arguments": {{"city": "Bern"}}}}\n</tool_call>'
FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "find"}}
ENDINGS = {"auto": "tool_calls", "required": "tool_calls", "named": "stop"}
"""As the OpenAI API has them: who names the function learns nothing by the reason."""


async def pieces_of(client, body):
    """The deltas of the one choice of a stream, but for the last chunk's, and why it ended."""
    *chunks, last = by_choice(streamed(await client.post(CHAT, json=body | {"stream": True})))[0]
    assert all(chunk["finish_reason"] is None for chunk in chunks)
    assert last["delta"] == {}, "the last chunk has the reason and nothing else"
    return [chunk["delta"] for chunk in chunks], last["finish_reason"]


@pytest.mark.parametrize(("text", "num_calls"), [(ONE, 1), (TWO, 2)])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_call_is_named_once_and_its_arguments_come_in_pieces(text, num_calls, choice):
    async with serving(scripted_engine(text, answer_format=HERMES)) as client:
        deltas, reason = await pieces_of(client, chat_body(tools=[FIND], tool_choice=choice))
    assert reason == "tool_calls"
    calls = {}
    for delta in deltas:
        for piece in delta.get("tool_calls", ()):
            calls.setdefault(piece["index"], []).append(piece)
    assert list(calls) == list(range(num_calls))
    for first, *later in calls.values():
        assert first.keys() == {"index", "id", "type", "function"}
        assert (first["type"], first["function"]["name"]) == ("function", "find")
        assert isinstance(first["function"]["arguments"], str)
        assert all(piece.keys() == {"index", "function"} for piece in later)
        assert all(piece["function"].keys() == {"arguments"} for piece in later)
        joined = "".join(piece["function"]["arguments"] for piece in (first, *later))
        assert json.loads(joined).keys() == {"city"}
    assert len({pieces[0]["id"] for pieces in calls.values()}) == num_calls


@pytest.mark.parametrize("choice", ENDINGS)
async def test_how_an_answer_with_calls_ends_is_the_same_whole_and_streamed(choice):
    body = chat_body(tools=[FIND], tool_choice=NAMED if choice == "named" else choice)
    async with serving(scripted_engine(ONE, answer_format=HERMES)) as client:
        whole = (await client.post(CHAT, json=body)).json()["choices"][0]
        _, reason = await pieces_of(client, body)
    assert whole["message"]["tool_calls"][0]["function"]["name"] == "find"
    assert whole["finish_reason"] == reason == ENDINGS[choice]


@pytest.mark.parametrize(
    ("stop", "reason", "arguments"),
    [
        ("rich", "stop", '{"city": "Zü'),
        ("</tool_call>", "tool_calls", '{"city": "Zürich"}'),
        ("}", "stop", '{"city": "Zürich"'),
    ],
)
async def test_a_call_that_a_stop_string_cuts_off_is_not_to_be_made(stop, reason, arguments):
    body = chat_body(tools=[FIND], stop=[stop])
    async with serving(scripted_engine(f"{ONE}.", answer_format=HERMES)) as client:
        whole = (await client.post(CHAT, json=body)).json()["choices"][0]
        deltas, streamed_reason = await pieces_of(client, body)
        asked = {"model": "scripted", "max_tokens": 500, "messages": body["messages"], "stop_sequences": [stop]}
        asked["tools"] = [{"name": "find", "input_schema": FIND["function"]["parameters"]}]
        message = (await client.post("/v1/messages", json=asked)).json()
    told = "".join(piece["function"]["arguments"] for delta in deltas for piece in delta.get("tool_calls", ()))
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == told == arguments
    assert whole["finish_reason"] == streamed_reason == reason
    assert message["stop_reason"] == ("tool_use" if reason == "tool_calls" else "stop_sequence")


@pytest.mark.parametrize("num_choices", [2, 3])
@pytest.mark.parametrize("parallel", [True, False])
async def test_each_of_several_choices_has_its_own_calls(num_choices, parallel):
    body = chat_body(tools=[FIND], n=num_choices, parallel_tool_calls=parallel)
    async with serving(scripted_engine(f"Look: {TWO}", answer_format=HERMES)) as client:
        whole = (await client.post(CHAT, json=body)).json()["choices"]
        chunks = by_choice(streamed(await client.post(CHAT, json=body | {"stream": True})))
    ids = [call["id"] for choice in whole for call in choice["message"]["tool_calls"]]
    for index, pieces in chunks.items():
        assert ["role" in piece["delta"] for piece in pieces] == [True] + [False] * (len(pieces) - 1)
        calls = [call for piece in pieces for call in piece["delta"].get("tool_calls", ())]
        starts = [call for call in calls if "id" in call]
        ids += [call["id"] for call in starts]
        assert [call["index"] for call in starts] == list(range(2 if parallel else 1))
        for start, expected in zip(starts, whole[index]["message"]["tool_calls"], strict=True):
            parts = [call["function"]["arguments"] for call in calls if call["index"] == start["index"]]
            assert "".join(parts) == expected["function"]["arguments"]
    assert len(set(ids)) == len(ids) == 2 * num_choices * (2 if parallel else 1)


async def test_text_streams_although_a_tool_could_be_called():
    answer = "No call is needed < here. " * 4
    async with serving(scripted_engine(answer, answer_format=HERMES, step_seconds=0.002)) as client:
        deltas, reason = await pieces_of(client, chat_body(tools=[FIND]))
    texts = [delta["content"] for delta in deltas if delta.get("content")]
    assert reason == "stop"
    assert "".join(texts) == answer
    assert len(texts) > 30


@pytest.mark.parametrize("fields", [{}, {"tools": [FIND], "tool_choice": "none"}], ids=["no tools", "none"])
async def test_marks_of_calls_are_text_where_nothing_can_be_called(fields):
    text = f"In docs one writes {ONE} and goes on. <tool_call>"
    async with serving(scripted_engine(text, answer_format=HERMES)) as client:
        whole = (await client.post(CHAT, json=chat_body(**fields))).json()["choices"][0]
        deltas, reason = await pieces_of(client, chat_body(**fields))
    assert whole["message"]["content"] == "".join(delta.get("content") or "" for delta in deltas) == text
    assert whole["finish_reason"] == reason == "stop"
    assert not whole["message"].get("tool_calls")


@pytest.mark.parametrize("arguments", ['{"path": "a.txt", "contents": "abc', "", "null", "[1]", "\x00", "{}"])
async def test_a_history_with_broken_arguments_can_be_gone_on_with(arguments):
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "cut off"},
        {"role": "user", "content": "And now?"},
    ]
    async with serving(scripted_engine("fine", answer_format=HERMES)) as client:
        for tools in ([], [FIND]):
            answer = await client.post(CHAT, json=chat_body(messages=messages, **({"tools": tools} if tools else {})))
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == "fine"


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_small_model_calls_what_it_must_and_hears_of_the_result(choice):
    body = chat("Which city?", tools=[FIND], max_tokens=80, temperature=0)
    async with default_engine() as engine, model_client(engine) as client:
        whole = (await client.post(CHAT, json=body | {"tool_choice": choice})).json()["choices"][0]
        deltas, reason = await pieces_of(client, body | {"tool_choice": choice})
        [call] = whole["message"]["tool_calls"]
        messages = [
            *body["messages"],
            whole["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "Bern"},
        ]
        answer = await client.post(CHAT, json=body | {"messages": messages, "tool_choice": "none"})
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}
    told = "".join(piece["function"]["arguments"] for delta in deltas for piece in delta.get("tool_calls", ()))
    assert told == call["function"]["arguments"]
    assert whole["finish_reason"] == reason
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
