"""Whether a JSON text has more values than a limit, counted without reading it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.json_size import has_more_values
from limelight.models.text.chat_messages import MAX_ARGUMENT_VALUES, template_messages

JSON = st.recursive(
    st.none() | st.integers() | st.text('a\\",:[{', max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a\\",:[{', max_size=3), inner, max_size=4),
)


def number_of_values(value):
    if isinstance(value, dict):
        return 1 + sum(1 + number_of_values(item) for item in value.values())
    return 1 + sum(map(number_of_values, value)) if isinstance(value, list) else 1


@given(JSON)
def test_no_text_has_more_values_than_are_counted(value):
    text = json.dumps(value)
    number = number_of_values(value)
    assert number == 1 or has_more_values(text, number - 1)
    assert not has_more_values(text, 4 * number + 2)


@pytest.mark.parametrize("text", ["", '"', '"\\', '"\\"', "[" * 9, '{"a": "b'])
def test_what_is_no_json_is_counted_to_its_end(text):
    assert not has_more_values(text, 100)
    has_more_values(text, 1)


def test_a_long_string_is_one_value():
    assert not has_more_values(json.dumps({"file": 'a,b\\"[{:' * 100_000}), 100)


def test_arguments_of_too_many_values_stay_a_text():
    text = json.dumps({"a": [[1]] * MAX_ARGUMENT_VALUES})
    calls = [{"type": "function", "function": {"name": "f", "arguments": text}}]
    [message] = template_messages([{"role": "assistant", "tool_calls": calls}], keep_parts=False)
    assert message["tool_calls"] == calls
