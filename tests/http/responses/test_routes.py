"""`/v1/responses` over HTTP: what is asked reaches the model, what it says comes back, and is kept."""

import itertools

import pytest

from limelight.http import HttpSettings
from limelight.parsing.answer_format import THINK, AnswerFormat
from limelight.testing import END, babble, scripted_engine
from tests.http.responses.wire import RESPONSES, body, plain, streamed, whole
from tests.http.wire import error_of

pytestmark = pytest.mark.anyio

LOGPROBS = ["message.output_text.logprobs"]


class Heard:
    """A script that remembers each prompt and answers "ok"."""

    def __init__(self):
        self.prompts = []

    def __call__(self, turn):
        if turn.number == 0:
            self.prompts.append(bytes(turn.prompt).decode())
        return b"ok"[turn.number] if turn.number < 2 else END


async def test_whole_and_streamed_are_the_same(serve):
    async with serve() as client:
        asked = body(seed=1, max_output_tokens=20, include=LOGPROBS, top_logprobs=2)
        one = whole(await client.post(RESPONSES, json=asked))
        other = streamed(await client.post(RESPONSES, json=asked | {"stream": True}))[-1]["response"]
    assert plain(one["output"]) == plain(other["output"])
    assert (one["status"], other["status"]) == ("incomplete", "incomplete")
    assert len(one["output"][0]["content"][0]["logprobs"]) == 20
    differing = {"id", "created_at", "completed_at", "output", "usage"}
    assert {name: one[name] for name in one.keys() - differing} == {
        name: other[name] for name in other.keys() - differing
    }
    assert one["usage"]["output_tokens"] == other["usage"]["output_tokens"] == 20
    assert other["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_a_response_is_kept_and_continued(serve):
    heard = Heard()
    async with serve(scripted_engine(heard)) as client:
        first = whole(await client.post(RESPONSES, json=body(input="one", instructions="Be brief.")))
        last = streamed(
            await client.post(RESPONSES, json=body(input="two", previous_response_id=first["id"], stream=True))
        )[-1]["response"]
        assert whole(await client.get(f"{RESPONSES}/{first['id']}")) == first
        assert whole(await client.get(f"{RESPONSES}/{last['id']}")) == last
        deleted = (await client.delete(f"{RESPONSES}/{first['id']}")).json()
        assert deleted == {"id": first["id"], "object": "response", "deleted": True}
        error_of(await client.get(f"{RESPONSES}/{first['id']}"), 404)
        await client.post(RESPONSES, json=body(input="three", previous_response_id=last["id"], instructions="New."))
        gone = error_of(await client.post(RESPONSES, json=body(previous_response_id=first["id"])), 404)
    assert (gone["code"], gone["param"]) == ("response_not_found", "previous_response_id")
    assert "input" in gone["message"]
    assert heard.prompts == [
        "system: Be brief.\nuser: one\nassistant:",
        "user: one\nassistant: ok\nuser: two\nassistant:",
        "system: New.\nuser: one\nassistant: ok\nuser: two\nassistant: ok\nuser: three\nassistant:",
    ]


async def test_what_is_not_to_be_kept_is_not_kept(serve):
    async with serve(scripted_engine("ok")) as client:
        answer = whole(await client.post(RESPONSES, json=body(store=False)))
        assert answer["store"] is False
        error_of(await client.get(f"{RESPONSES}/{answer['id']}"), 404)
    async with serve(scripted_engine("ok"), HttpSettings(max_stored_responses=0)) as client:
        answer = whole(await client.post(RESPONSES, json=body()))
        assert answer["store"] is False
        assert "keeps none" in error_of(await client.get(f"{RESPONSES}/{answer['id']}"), 404)["message"]


async def test_responses_belong_to_a_key(serve):
    settings = HttpSettings(api_keys={"ann": "a", "bob": "b"})
    ann, bob = ({"authorization": f"Bearer {key}"} for key in "ab")
    async with serve(scripted_engine("ok"), settings) as client:
        path = f"{RESPONSES}/{whole(await client.post(RESPONSES, json=body(), headers=ann))['id']}"
        for method, below in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
            error_of(await client.request(method, path + below, headers=bob), 404)
            error_of(await client.request(method, path + below), 401)
        assert (await client.get(path, headers=ann)).status_code == 200


async def test_a_stored_response_is_told_again_as_events(serve):
    async with serve(scripted_engine("ok")) as client:
        response = whole(await client.post(RESPONSES, json=body(include=LOGPROBS)))
        path = f"{RESPONSES}/{response['id']}"
        assert streamed(await client.get(path, params={"stream": "true"}))[-1]["response"] == response
        for query in ({"stream": "perhaps"}, {"stream": "true", "starting_after": "1"}):
            assert error_of(await client.get(path, params=query), 400)["param"] in query


async def test_input_items_come_in_pages(serve):
    given = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_mine"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    ]
    async with serve(scripted_engine("ok")) as client:
        path = f"{RESPONSES}/{whole(await client.post(RESPONSES, json=body(input=given)))['id']}/input_items"
        every = (await client.get(path, params={"order": "asc"})).json()
        newest = (await client.get(path, params={"limit": "2"})).json()
        rest = (await client.get(path, params={"limit": "3", "after": newest["last_id"]})).json()
        for query in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"order": "up"}, {"after": "msg_0"}):
            assert error_of(await client.get(path, params=query), 400)["param"] in query
    assert every["has_more"] is False
    assert every["data"][2] == given[2] | {"status": "completed"}
    assert [item["id"] for item in newest["data"] + rest["data"]] == [item["id"] for item in every["data"]][::-1]
    assert (newest["has_more"], rest["has_more"]) == (True, False)
    assert (newest["first_id"], newest["last_id"]) == tuple(item["id"] for item in newest["data"])


async def test_items_become_the_messages_of_the_template(serve):
    heard = Heard()
    items = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "input_text", "text": "u"}, {"type": "input_text", "text": "v"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}], "id": "msg_1"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "41"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "42"}]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "end"},
    ]
    async with serve(
        scripted_engine(heard, answer_format=AnswerFormat(renders_tools=True, renders_calls=True))
    ) as client:
        answer = await client.post(RESPONSES, json=body(input=items, instructions="system"))
    assert answer.status_code == 200, answer.text
    assert "x-limelight-ignored-fields" not in answer.headers
    lines = "system: system|nrules|user: u|nv|assistant: one|tool: 41|tool: 42|assistant: two|user: end|assistant:"
    assert heard.prompts == [lines.replace("|nrules", "\n\nrules").replace("|nv", "\nv").replace("|", "\n")]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "invalid_value"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "unsupported_parameter"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "invalid_value"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]},
            "input[0].call_id",
            "invalid_value",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, "input[0].id", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
            "unsupported_parameter",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": 9}, "temperature", "invalid_value"),
        ({"metadata": {"k" * 65: "v"}}, "metadata", "invalid_value"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata", "invalid_value"),
        ({"include": ["file_search_call.results"]}, "include[0]", "unsupported_parameter"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 21, "include": LOGPROBS}, "top_logprobs", "invalid_value"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type", "invalid_value"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "invalid_value"),
        ({"text": {"fromat": {"type": "text"}}}, "text", "invalid_value"),
        ({"reasoning": {"budget": 5}}, "reasoning", "invalid_value"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1].name", "invalid_value"),
        (
            {"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format",
            "unsupported_parameter",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "perhaps"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_parameter"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"cache_salt": ""}, "cache_salt", "invalid_value"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
        ({"inputs": "x"}, "inputs", "unknown_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(serve, fields, param, code):
    async with serve() as client:
        for stream in (False, True):
            error = error_of(await client.post(RESPONSES, json=body(stream=stream) | fields), 400)
            assert (error["param"], error["code"]) == (param, code)


async def test_reasoning_that_shall_be_encrypted_is_given_as_text(serve):
    async with serve(scripted_engine("ok")) as client:
        asked = body(include=["reasoning.encrypted_content"], store=False)
        answer = await client.post(RESPONSES, json=asked)
    assert answer.status_code == 200
    assert answer.json()["output"][0]["content"][0]["text"] == "ok"


async def test_stream_options_need_a_stream(serve):
    async with serve(scripted_engine("ok")) as client:
        asked = body(stream_options={"include_obfuscation": True})
        assert error_of(await client.post(RESPONSES, json=asked), 400)["param"] == "stream_options"
        assert streamed(await client.post(RESPONSES, json=asked | {"stream": True}))


async def test_an_error_of_the_template_names_the_input(serve):
    async with serve(scripted_engine(max_model_len=64)) as client:
        error = error_of(await client.post(RESPONSES, json=body(input="x" * 100)), 400)
    assert error["code"] == "context_length_exceeded"
    async with serve() as client:
        error = error_of(await client.post(RESPONSES, json=body(model="nope")), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_a_failure_after_the_first_event_is_told_as_one(serve):
    steps = itertools.count()

    def fail(step):
        if step.chunks and next(steps) > 3:
            raise RuntimeError("broken")

    async with serve(scripted_engine(babble, before_step=fail)) as client:
        found = streamed(await client.post(RESPONSES, json=body(stream=True, max_output_tokens=50)))
        assert found[-1]["type"] == "response.failed"
        assert found[-1]["response"]["error"]["code"] == "server_error"
        kept = whole(await client.get(f"{RESPONSES}/{found[-1]['response']['id']}"))
        assert kept == found[-1]["response"]


@pytest.mark.parametrize("fields", [{}, {"include_reasoning": False}])
@pytest.mark.parametrize("answer", ["<think>\nHm. Hi\n</think>\n\nHi", "<think></think>Hi", "Hi", "<think>Hi"])
async def test_log_probabilities_of_a_message_are_those_of_its_text(serve, answer, fields):
    asked = body(include=LOGPROBS, **fields)
    async with serve(scripted_engine(answer, answer_format=AnswerFormat(reasoning=THINK))) as client:
        one = whole(await client.post(RESPONSES, json=asked))
        events = streamed(await client.post(RESPONSES, json={**asked, "stream": True}))
    assert plain(one["output"]) == plain(events[-1]["response"]["output"])
    for item in one["output"]:
        if item["type"] == "message":
            [content] = item["content"]
            letters = [entry["token"] for entry in content["logprobs"] if entry["token"] != "<|end|>"]
            assert letters == list(content["text"])


async def test_a_text_that_breaks_off_in_a_mark_of_a_call_keeps_its_log_probabilities(serve):
    tools = [{"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}]
    engine = scripted_engine("Let me see.\n<tool_call>", answer_format=AnswerFormat(tool_format="hermes"))
    asked = body(include=LOGPROBS, tools=tools, max_output_tokens=16)
    async with serve(engine) as client:
        one = whole(await client.post(RESPONSES, json=asked))
        events = streamed(await client.post(RESPONSES, json={**asked, "stream": True}))
    assert plain(one["output"]) == plain(events[-1]["response"]["output"])
    [content] = one["output"][0]["content"]
    assert "".join(entry["token"] for entry in content["logprobs"]) == content["text"] == "Let me see.\n<too"
