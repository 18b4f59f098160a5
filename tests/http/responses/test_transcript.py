"""What the chat template gets of items."""

import pytest

from limelight.errors import InvalidRequest
from limelight.http.protocol.messages import Part
from limelight.http.protocol.responses.items import Item, checked_items
from limelight.http.protocol.responses.tools import custom_input
from limelight.http.protocol.responses.transcript import template_messages


def messages(*items, instructions=None, earlier=()):
    return template_messages(instructions, checked_items(earlier), checked_items(items))


def said(role, text):
    return Item(role=role, content=text)


def call(call_id, name="f", arguments="{}", **fields):
    return Item(type="function_call", call_id=call_id, name=name, arguments=arguments, **fields)


def output(call_id, text):
    return Item(type="function_call_output", call_id=call_id, output=text)


def thought(text):
    return Item(type="reasoning", content=[Part(type="reasoning_text", text=text)])


def made_call(call_id, name="f", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_items_of_one_answer_are_one_message():
    assert messages(
        said("user", "q"), thought("hm"), said("assistant", "text"), call("1"), call("2"), output("1", "x")
    ) == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "text",
            "reasoning_content": "hm",
            "tool_calls": [made_call("1"), made_call("2")],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]


def test_answers_after_each_other_stay_apart():
    found = messages(said("assistant", "a"), said("assistant", "b"), thought("hm"), said("assistant", "c"))
    assert [message["content"] for message in found] == ["a", "b", "c"]
    assert found[2]["reasoning_content"] == "hm"
    found = messages(call("1"), output("1", "x"), call("2"), said("assistant", "after"))
    assert [message["role"] for message in found] == ["assistant", "tool", "assistant"]
    assert found[2]["content"] == "after"


def test_system_messages_at_the_beginning_are_one():
    found = messages(said("developer", "b"), said("user", "q"), said("system", "c"), instructions="a")
    assert found == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "q"},
        {"role": "system", "content": "c"},
    ]


def test_calls_that_broke_off_are_left_out():
    found = messages(said("assistant", "a"), call("1", arguments='{"x', status="incomplete"), said("user", "go on"))
    assert found == [{"role": "assistant", "content": "a"}, {"role": "user", "content": "go on"}]
    with pytest.raises(InvalidRequest) as unknown:
        messages(call("1", status="incomplete"), output("1", "x"))
    assert unknown.value.param == "input[1].call_id"


def test_custom_calls_carry_their_text_as_an_argument():
    found = messages(
        Item(type="custom_tool_call", call_id="1", name="python", input='print("é")\n'),
        Item(type="custom_tool_call_output", call_id="1", output="é"),
    )
    arguments = found[0]["tool_calls"][0]["function"]["arguments"]
    assert custom_input(arguments) == 'print("é")\n'
    assert found[1] == {"role": "tool", "tool_call_id": "1", "content": "é"}


def test_calls_of_earlier_responses_can_be_answered():
    found = messages(output("1", "x"), earlier=[said("user", "q"), call("1")])
    assert [message["role"] for message in found] == ["user", "assistant", "tool"]
