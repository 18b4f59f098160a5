"""Streams of responses: the order of events, and that a stream and a whole answer are the same."""

import itertools
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.generation import Delta, FinishReason, TokenLogprob, Usage
from limelight.http.conversation import AnswerPart, AnswerReader
from limelight.http.errors import ErrorBody, ErrorObject
from limelight.http.protocol.responses.objects import Reasoning, ResponseObject
from limelight.http.protocol.responses.request import TextConfig
from limelight.http.responses.frames import ResponseFrames, replayed_frames
from limelight.http.responses.output import Output
from limelight.http.responses.run import ResponseRun
from limelight.parsing.parts import CallArguments, CallStart, ReasoningPart, TextPart
from tests.http.responses.wire import events, plain

USAGE = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)
REASONING, MESSAGE = "reasoning", "message"


class PartsReader(AnswerReader):
    """Finds the parts that the test has put into the deltas' place."""

    def __init__(self, deltas):
        super().__init__()
        self._deltas = iter(deltas)

    def feed(self, delta):
        return next(self._deltas)


def empty_response(status="in_progress"):
    return ResponseObject(
        id="resp_1",
        created_at=1,
        status=status,
        background=status == "queued",
        instructions=None,
        max_output_tokens=None,
        max_tool_calls=None,
        metadata={},
        model="m",
        parallel_tool_calls=True,
        previous_response_id=None,
        prompt_cache_key=None,
        reasoning=Reasoning(),
        safety_identifier=None,
        store=True,
        temperature=1.0,
        text=TextConfig(),
        tool_choice="auto",
        tools=[],
        top_logprobs=0,
        top_p=1.0,
        user=None,
    )


class News:
    """What a stream hands to its writer."""

    number = 0
    stream = SimpleNamespace(timeline=None)

    def __init__(self, *deltas):
        self.deltas = deltas


def written(deltas, *, status="in_progress", finish=FinishReason.STOP, error=None, custom=frozenset(), logprobs=False):
    """The events of an answer whose parts come in `deltas`, and the response that was handed over at the end."""
    ended = []
    run = ResponseRun(empty_response(status), PartsReader(deltas), Output(custom, with_logprobs=logprobs))
    writer = ResponseFrames(run, ended.append)
    frames = list(writer.opening())
    for number in range(len(deltas)):
        last = number == len(deltas) - 1 and error is None
        delta = Delta(finish_reason=finish if last else None, usage=USAGE if last else None)
        frames += writer.frames(News(delta))
    frames += writer.ending() if error is None else writer.failure(ErrorBody(error))
    (response,) = ended
    return events(b"".join(frames)), response


def error_object(kind="server_error", code="step_failed"):
    return ErrorObject(message="broken", type=kind, param=None, code=code, request_id="r")


def as_json(value):
    return msgspec.json.decode(msgspec.json.encode(value))


def part(value, logprobs=None):
    return AnswerPart(value, logprobs)


def names(found):
    return [event["type"].removeprefix("response.") for event in found]


def test_the_order_of_events_is_the_official_one():
    found, response = written(
        [
            [part(ReasoningPart("why"))],
            [part(ReasoningPart(" so")), part(TextPart("Hel"))],
            [part(TextPart("lo")), part(CallStart(0, "f")), part(CallArguments(0, '{"a'))],
            [part(CallArguments(0, '": 1}')), part(CallStart(1, "g"))],
        ]
    )
    added, done = ["output_item.added"], ["output_item.done"]
    opened, closed = [*added, "content_part.added"], ["content_part.done", *done]
    assert names(found) == [
        "created",
        "in_progress",
        *opened,
        *["reasoning_text.delta"] * 2,
        "reasoning_text.done",
        *closed,
        *opened,
        *["output_text.delta"] * 2,
        "output_text.done",
        *closed,
        *added,
        *["function_call_arguments.delta"] * 2,
        "function_call_arguments.done",
        *done,
        *added,
        "function_call_arguments.done",
        *done,
        "completed",
    ]
    assert found[0]["response"]["output"] == found[1]["response"]["output"] == []
    assert found[-1]["response"] == as_json(response)
    assert [item["status"] for item in found[-1]["response"]["output"]] == ["completed"] * 4
    assert found[-1]["response"]["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


def test_the_limit_leaves_the_last_item_and_the_response_incomplete():
    found, response = written([[part(ReasoningPart("why")), part(TextPart("Hel"))]], finish=FinishReason.LENGTH)
    assert names(found)[-1] == "incomplete"
    assert [item["status"] for item in found[-1]["response"]["output"]] == ["completed", "incomplete"]
    assert found[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response.completed_at is None


def test_a_failure_keeps_what_was_said_and_is_the_only_end():
    found, response = written([[part(TextPart("Hel"))]], error=error_object())
    assert names(found)[-3:] == ["content_part.done", "output_item.done", "failed"]
    assert found[-1]["response"]["error"] == {"code": "server_error", "message": "broken"}
    assert response.status == "failed"
    found, _ = written([], error=error_object("invalid_request_error", "context_length_exceeded"))
    assert names(found) == ["created", "in_progress", "failed"]
    assert found[-1]["response"]["error"]["code"] == "invalid_prompt"


def test_a_cancelled_response_says_so():
    found, _ = written([[part(TextPart("Hel"))]], error=error_object(code="request_cancelled"))
    assert names(found)[-1] == "incomplete"
    assert (found[-1]["response"]["status"], found[-1]["response"]["error"]) == ("cancelled", None)


def test_a_response_in_the_background_is_queued_until_the_model_speaks():
    found, _ = written([[part(TextPart("a"))]], status="queued")
    assert names(found)[:3] == ["created", "queued", "in_progress"]
    assert [event["response"]["status"] for event in found[:3]] == ["queued", "queued", "in_progress"]


def test_an_answer_without_anything_has_an_empty_message_and_its_log_probabilities():
    (_, response), (_, bare) = (
        written([[part(TextPart(""), (entry(b""),))]], logprobs=True),
        written([[]]),
    )
    assert response.output[0].content[0].logprobs[0].token == ""
    assert (bare.output[0].content[0].text, bare.output[0].content[0].logprobs) == ("", msgspec.UNSET)


def test_text_for_a_custom_tool_is_taken_out_of_its_arguments():
    pieces = ['{"input": "print(', '1)\\n"}']
    parts = [[part(CallStart(0, "python"))], *([part(CallArguments(0, piece))] for piece in pieces)]
    found, response = written(parts, custom=frozenset({"python"}))
    assert names(found)[2:-1] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert response.output[0].input == "print(1)\n"
    _, broken = written([parts[0], parts[1]], custom=frozenset({"python"}))
    assert broken.output[0].input == pieces[0]


def entry(raw):
    return TokenLogprob(1, raw.decode(), raw, -0.5)


def answers():
    """Parts of a whole answer: text and reasoning of any length, calls with arguments."""
    text = st.one_of(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40), st.just("long " * 1000))
    said = st.one_of(text.map(TextPart), text.map(ReasoningPart), st.tuples(st.sampled_from("fgh"), text))
    return st.lists(said, max_size=5).map(_numbered)


def _numbered(said):
    parts, calls = [], itertools.count()
    for value in said:
        if isinstance(value, tuple):
            index = next(calls)
            parts += [CallStart(index, value[0]), CallArguments(index, value[1])]
        elif parts and type(parts[-1]) is type(value):
            parts[-1] = type(value)(parts[-1].text + value.text)
        else:
            parts.append(value)
    return parts


@given(answers(), st.data())
def test_however_an_answer_is_cut_the_items_are_those_of_the_whole(parts, data):
    _, whole = written([[part(value) for value in parts]], custom=frozenset("h"))
    cut = []
    for value in parts:
        if isinstance(value, CallStart):
            cut.append([part(value)])
            continue
        places = sorted(data.draw(st.sets(st.integers(1, len(value.text)), max_size=3)))
        for start, end in itertools.pairwise([0, *places, len(value.text)]):
            if end > start:
                cut.append([part(msgspec.structs.replace(value, text=value.text[start:end]))])
    found, streamed = written(cut or [[]], custom=frozenset("h"))
    assert plain(as_json(streamed.output)) == plain(as_json(whole.output))
    again = events(b"".join(replayed_frames(streamed)))
    assert again[-1]["response"] == found[-1]["response"]


@given(st.lists(st.sampled_from(["a", "é", "東", "😀"]), min_size=1), st.data())
def test_log_probabilities_stay_with_their_text(letters, data):
    entries = [entry(letter.encode()) for letter in letters]
    cut = sorted(data.draw(st.sets(st.integers(1, len(letters)), max_size=3)))
    deltas = [
        [part(TextPart("".join(letters[start:end])), tuple(entries[start:end]))]
        for start, end in itertools.pairwise([0, *cut, len(letters)])
        if end > start
    ]
    found, response = written(deltas, logprobs=True)
    content = response.output[0].content[0]
    assert (content.text, [one.token for one in content.logprobs]) == ("".join(letters), letters)
    for event in found:
        if event["type"] == "response.output_text.delta":
            assert "".join(one["token"] for one in event["logprobs"]) == event["delta"]
    assert events(b"".join(replayed_frames(response)))[-1]["response"] == found[-1]["response"]


@pytest.mark.parametrize("length", [10_000, 200_000])
def test_no_delta_reaches_the_line_limit_of_common_readers(length):
    found, _ = written(
        [[part(TextPart("\u0001" * length)), part(CallStart(0, "f")), part(CallArguments(0, "x" * length))]]
    )
    assert max(len(msgspec.json.encode(event)) for event in found if event["type"].endswith(".delta")) < 65536
