"""`/v1/messages` through Anthropic's own client, unchanged, against a real socket."""

import json
import typing
from contextlib import asynccontextmanager

import anthropic
import pytest
from anthropic.types import MessageCountTokensParams, RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsBase
from pydantic import TypeAdapter

from limelight.generation import Completion, Delta, FinishReason, Usage
from limelight.http import HttpSettings
from limelight.http.anthropic.blocks import BlockEvents, content_blocks, stop
from limelight.http.anthropic.frames import PING, event_frame
from limelight.http.conversation import AnswerPart, PreparedConversation
from limelight.http.protocol.anthropic.answer import BlockDelta, BlockStart, BlockStop
from limelight.http.protocol.anthropic.conversation import conversation
from limelight.http.protocol.anthropic.request import MESSAGES_DECODER, ConversationFields
from limelight.http.protocol.fields.anthropic import COUNT_TOKENS_FIELDS, MESSAGES_FIELDS
from limelight.http.protocol.fields.field import Effect
from limelight.parsing.parts import CallArguments, CallStart, ReasoningPart, TextPart
from limelight.testing import scripted_engine
from tests.http.wire import HI, serving

pytestmark = pytest.mark.anyio

ANSWER = "Grüße aus 東京 😀!"
MESSAGES = "/v1/messages"
EVENTS = TypeAdapter(RawMessageStreamEvent)


def body(**fields):
    return {"model": "scripted", "max_tokens": 100, "messages": HI, **fields}


@asynccontextmanager
async def official(engine, settings=None, **options):
    async with (
        serving(engine, settings) as client,
        anthropic.AsyncAnthropic(
            base_url=str(client.base_url),
            **{"api_key": "none", "max_retries": 0, **options},
            http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
        ) as api,
    ):
        yield api


def events_of(text):
    """Name and JSON of every frame."""
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        yield name.removeprefix("event: "), data.removeprefix("data: ")


async def test_whole_and_streamed_give_the_same_message():
    async with official(scripted_engine(ANSWER)) as api:
        whole = await api.messages.create(**body())
        async with api.messages.stream(**body()) as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
    assert whole.content[0].text == final.content[0].text == "".join(pieces) == ANSWER
    assert (whole.stop_reason, whole.stop_sequence) == (final.stop_reason, final.stop_sequence) == ("end_turn", None)
    assert whole.usage.output_tokens == final.usage.output_tokens > 0
    # The second request finds the first one's prompt in the cache, unless it is shorter than a page.
    inputs = [usage.input_tokens + usage.cache_read_input_tokens for usage in (whole.usage, final.usage)]
    assert inputs[0] == inputs[1] > 0
    assert whole.id.startswith("msg_")
    assert (whole.role, whole.type, whole.model) == ("assistant", "message", "scripted")


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"stop_sequences": ["東京"]}, "stop_sequence", "東京"),
        ({"max_tokens": 3}, "max_tokens", None),
        ({}, "end_turn", None),
    ],
)
async def test_how_a_message_ends(fields, reason, sequence):
    async with official(scripted_engine(ANSWER)) as api:
        whole = await api.messages.create(**body(**fields))
        async with api.messages.stream(**body(**fields)) as stream:
            final = await stream.get_final_message()
    assert (whole.stop_reason, whole.stop_sequence) == (reason, sequence)
    assert (final.stop_reason, final.stop_sequence) == (reason, sequence)
    assert whole.content[0].text == final.content[0].text


async def test_a_context_that_ends_first_has_a_reason_of_its_own():
    async with official(scripted_engine("x" * 500, max_model_len=64)) as api:
        whole = await api.messages.create(**body(max_tokens=400))
    assert whole.stop_reason == "model_context_window_exceeded"


async def test_events_come_in_the_official_order_and_shape(serve):
    async with serve(scripted_engine(ANSWER)) as client:
        answer = await client.post(MESSAGES, json=body(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = list(events_of(answer.text))
    for name, data in events:
        assert EVENTS.validate_json(data).type == name
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}


def parts_to_events(parts):
    blocks = BlockEvents()
    return [event for part in parts for event in blocks.feed(AnswerPart(part))] + list(blocks.finish())


def test_blocks_of_reasoning_text_and_calls_follow_each_other():
    events = parts_to_events(
        [
            ReasoningPart("hm"),
            ReasoningPart("m"),
            TextPart("I look"),
            CallStart(0, "find"),
            CallArguments(0, '{"a":'),
            CallArguments(0, "1}"),
            CallStart(1, "find"),
            CallArguments(1, "{}"),
        ]
    )
    for event in events:
        EVENTS.validate_json(event_frame(event).split(b"data: ")[1])
    starts = [event for event in events if isinstance(event, BlockStart)]
    assert [type(event.content_block).__name__ for event in starts] == [
        "ThinkingBlock",
        "TextBlock",
        "ToolUseBlock",
        "ToolUseBlock",
    ]
    assert [event.index for event in starts] == [0, 1, 2, 3]
    assert [event.index for event in events if isinstance(event, BlockStop)] == [0, 1, 2, 3]
    open_block = None
    for event in events:
        if isinstance(event, BlockStart):
            assert open_block is None
            open_block = event.index
        elif isinstance(event, BlockDelta):
            assert event.index == open_block
        elif isinstance(event, BlockStop):
            assert event.index == open_block
            open_block = None


def test_a_streamed_signature_is_that_of_the_whole():
    output = Completion(index=0, text="x", token_ids=(), reasoning="hmm", finish_reason=FinishReason.STOP)
    prepared = PreparedConversation(prompt=None, sampling=None, reasoning=None)
    [thinking, text] = content_blocks(prepared.whole(output))
    events = parts_to_events([ReasoningPart("h"), ReasoningPart("mm"), TextPart("x")])
    [signature] = [event.delta.signature for event in events if hasattr(getattr(event, "delta", None), "signature")]
    assert thinking.signature == signature != ""
    assert text.text == "x"


def test_an_answer_without_anything_has_an_empty_text():
    assert [type(event).__name__ for event in parts_to_events([])] == ["BlockStart", "BlockStop"]


def test_calls_end_with_tool_use():
    ended = Delta(finish_reason=FinishReason.STOP, usage=Usage(prompt_tokens=1, completion_tokens=1))
    assert stop("tool_calls", ended, context_ended=False) == ("tool_use", None)


def test_a_ping_is_an_event_that_the_client_drops():
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'


def converted(**fields):
    decoded, _ = MESSAGES_DECODER.decode(json.dumps(body(**fields)).encode())
    return conversation(decoded)


def test_a_history_with_calls_becomes_what_templates_read():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sun"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    assert list(converted(system=[{"type": "text", "text": "be brief"}], messages=messages).messages) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "toolu_1",
                    "function": {"name": "find", "arguments": '{"city":"Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sun"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "user", "content": "and now?"},
    ]


def test_turns_of_one_role_are_joined_and_a_last_one_of_the_assistant_goes_on():
    made = converted(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "The"},
        ]
    )
    assert [message["content"] for message in made.messages] == ["a\nb", "The"]
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                ]
            },
            "messages",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]},
            "messages[0].content[0]",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"container": "x"}, "container"),
        ({"response_format": {"type": "json_object"}}, "output_config.format"),
        ({"n": 2}, "/v1/chat/completions"),
        ({"seed": 1}, "seed"),
    ],
)
async def test_what_cannot_work_is_named(serve, fields, param):
    async with serve(scripted_engine(ANSWER)) as client:
        answer = await client.post(MESSAGES, json=body(**fields))
    assert answer.status_code == 400
    error = answer.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert param in error["error"]["message"]
    assert error["request_id"] == answer.headers["request-id"]


async def test_errors_raise_the_right_classes():
    settings = HttpSettings(api_keys={"me": "right"}, max_body_bytes=2000)
    async with official(scripted_engine(ANSWER), settings, api_key="wrong") as api:
        with pytest.raises(anthropic.AuthenticationError):
            await api.messages.create(**body())
        right = api.with_options(api_key="right")
        with pytest.raises(anthropic.NotFoundError) as missing:
            await right.messages.create(**body(model="other"))
        assert missing.value.body["error"]["type"] == "not_found_error"
        assert missing.value.request_id
        with pytest.raises(anthropic.BadRequestError):
            await right.messages.create(**body(messages=[]))
        with pytest.raises(anthropic.ContentTooLargeError):
            await right.messages.create(**body(system="x" * 3000))
        assert (await right.messages.create(**body())).content[0].text == ANSWER


async def test_a_failure_in_mid_stream_is_one_error_event():
    def fail_late(step):
        if step.number == 5:
            raise RuntimeError("secret detail")

    async with serving(scripted_engine("x" * 100, before_step=fail_late)) as client:
        answer = await client.post(MESSAGES, json=body(stream=True))
    assert answer.status_code == 200
    names = [name for name, _ in events_of(answer.text)]
    assert names[-1] == "error"
    assert names.count("error") == 1
    assert "message_stop" not in names
    assert "secret" not in answer.text
    assert json.loads(list(events_of(answer.text))[-1][1])["error"]["type"] == "api_error"


async def test_the_client_raises_what_fails_in_mid_stream():
    def fail_late(step):
        if step.number == 5:
            raise RuntimeError("secret detail")

    async with official(scripted_engine("x" * 100, before_step=fail_late)) as api:
        with pytest.raises(anthropic.APIStatusError) as failed:
            async with api.messages.stream(**body()) as stream:
                async for _ in stream:
                    pass
    assert failed.value.body["type"] == "error"


async def test_tokens_are_counted_as_a_message_has_them():
    async with official(scripted_engine(ANSWER)) as api:
        counted = await api.messages.count_tokens(model="scripted", messages=HI, system="be brief")
        usage = (await api.messages.create(**body(system="be brief"))).usage
        with pytest.raises(anthropic.NotFoundError):
            await api.messages.count_tokens(model="other", messages=HI)
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_every_field_of_the_client_has_a_row():
    fields = typing.get_type_hints(MessageCreateParamsBase)
    assert fields.keys() - MESSAGES_FIELDS.keys() == set()
    assert typing.get_type_hints(MessageCountTokensParams).keys() - COUNT_TOKENS_FIELDS.keys() == set()


def test_every_row_that_is_not_refused_is_read():
    known = {name for name, field in COUNT_TOKENS_FIELDS.items() if field.effect is not Effect.REFUSED}
    assert known - set(ConversationFields.__struct_fields__) == set()
