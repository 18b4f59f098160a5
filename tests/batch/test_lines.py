"""What a line of a batch is read as."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.batch.lines import MAX_LINE_BYTES, RefusedLine, RequestLine, parse_line
from tests.batch.batch_lines import request


def test_a_line_keeps_its_body_byte_for_byte() -> None:
    line = parse_line(3, b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"x": 1.50, "y":"\\u00e9"}}')
    assert isinstance(line, RequestLine)
    assert (line.number, line.custom_id, line.url) == (3, "a", "/v1/completions")
    assert line.body == b'{"x": 1.50, "y":"\\u00e9"}'


def test_what_else_stands_beside_a_body_is_the_callers_own() -> None:
    assert isinstance(parse_line(1, json.dumps({**request("a"), "metadata": {"row": 7}}).encode()), RequestLine)


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"custom_id": 7}, "custom_id", "custom_id is 7"),
        ({"custom_id": ""}, "custom_id", "custom_id is ''"),
        ({"method": "GET"}, "method", '"POST"'),
        ({"url": "/v1/load_lora_adapter"}, "url", "/v1/chat/completions"),
        ({"url": "http://h/v1/completions"}, "url", "/v1/completions"),
        ({"body": [1]}, "body", "body must be an object"),
        ({"body": None}, "body", "body must be an object"),
        ({"body": {"stream": True}}, "body.stream", "leave it out"),
        ({"body": {"background": True}}, "body.background", "leave it out"),
    ],
)
def test_a_line_that_is_no_request_says_where_and_why(change: dict[str, object], param: str, says: str) -> None:
    line = parse_line(12, json.dumps({**request("a"), **change}).encode())
    assert isinstance(line, RefusedLine)
    assert (line.number, line.error.line, line.error.param) == (12, 12, param)
    assert line.error.message.startswith("line 12: ")
    assert says in line.error.message
    assert line.custom_id == (None if "custom_id" in change else "a")


@pytest.mark.parametrize("field", ["custom_id", "method", "url", "body"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    line = parse_line(1, json.dumps({name: value for name, value in request("a").items() if name != field}).encode())
    assert isinstance(line, RefusedLine)
    assert line.error.param == field


def test_stream_may_be_false() -> None:
    assert isinstance(parse_line(1, json.dumps(request("a", stream=False)).encode()), RequestLine)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": ' + b"[" * 100_000,
        b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"x": ' + b"[" * 100_000,
        b"x" * (MAX_LINE_BYTES + 1),
        b"\xff\xfe",
        b'{"custom_id": "\xff"}',
        b"7",
        b"[]",
    ],
    ids=["deep", "deep body", "deep field", "long", "not UTF-8", "not UTF-8 within", "number", "array"],
)
def test_hostile_lines_are_refused_in_a_short_message(raw: bytes) -> None:
    line = parse_line(1, raw)
    assert isinstance(line, RefusedLine)
    assert len(line.error.message) < 500


@given(st.binary(min_size=1, max_size=60) | st.text(min_size=1, max_size=60).map(str.encode))
def test_whatever_stands_in_a_line_it_is_read(raw: bytes) -> None:
    line = parse_line(1, raw)
    assert line.id.startswith("batch_req_")
    assert isinstance(line, RefusedLine)


def test_ids_tell_lines_apart_and_are_the_same_in_every_run() -> None:
    a, b = json.dumps(request("a")).encode(), json.dumps(request("a", seed=1)).encode()
    assert parse_line(1, a).id == parse_line(5, a).id
    assert parse_line(1, a).id != parse_line(1, b).id
    assert parse_line(1, b"what").id != parse_line(2, b"what").id
