"""A body of permitted length may still be refused, before it is decoded, if decoding it would hold up everybody."""

import json

import pytest

from limelight.errors import InvalidRequest, UnknownField
from limelight.http.conversation import MAX_TOOLS
from limelight.http.protocol.chat import CHAT_DECODER, chat_conversation
from limelight.http.protocol.completions import COMPLETION_DECODER, completion_prompts
from limelight.http.protocol.embeddings import EMBEDDING_DECODER
from limelight.http.protocol.sizes import MAX_ENTRIES, MAX_FIELD_BYTES, MAX_PROMPTS, MAX_TOKEN_IDS, MAX_VALUES
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, error_of

pytestmark = pytest.mark.anyio


def chat(**fields):
    return json.dumps(chat_body(**fields)).encode()


def completion(prompt):
    return json.dumps(completion_body(prompt=prompt)).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [1] * MAX_FIELD_BYTES},
        {"stop": ["a"] * MAX_FIELD_BYTES},
        {"logit_bias": {str(number): 1 for number in range(MAX_FIELD_BYTES // 8)}},
        {"metadata": {str(number): "1" for number in range(MAX_FIELD_BYTES // 8)}},
        {"chat_template_kwargs": {"a": [[]] * MAX_FIELD_BYTES}},
        {"user": "u" * MAX_FIELD_BYTES},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_huge_value_of_any_other_field_than_the_prompt_is_refused_by_name(fields):
    with pytest.raises(InvalidRequest, match=f"bytes, at most {MAX_FIELD_BYTES}") as refusal:
        CHAT_DECODER.decode(chat(**fields))
    assert refusal.value.param == next(iter(fields))


def test_the_longest_permitted_stop_strings_fit_even_if_all_of_them_is_escaped():
    stop = [chr(0x1F600) * 1024] * 16
    assert CHAT_DECODER.decode(chat(stop=stop))[0].stop == stop


@pytest.mark.parametrize(
    ("prompt", "what"),
    [
        ([[1]] * (MAX_PROMPTS + 1), f"{MAX_PROMPTS + 1} prompts, at most {MAX_PROMPTS}"),
        (["a"] * (MAX_PROMPTS + 1), f"{MAX_PROMPTS + 1} prompts, at most {MAX_PROMPTS}"),
        (['"'] * (MAX_PROMPTS + 1), f"{MAX_PROMPTS + 1} prompts, at most {MAX_PROMPTS}"),
        (["\\"] * (MAX_PROMPTS + 1), f"{MAX_PROMPTS + 1} prompts, at most {MAX_PROMPTS}"),
        ([1] * (MAX_TOKEN_IDS + 1), f"{MAX_TOKEN_IDS + 1} token ids, at most {MAX_TOKEN_IDS}"),
        ([[1] * 1024] * 1025, "1025 prompts"),
        ([[1] * 1025] * 1024, f"{1024 * 1025} token ids"),
    ],
    ids=["lists", "strings", "quotes", "backslashes", "ids", "lists of many ids", "many ids in lists"],
)
def test_too_many_prompts_or_token_ids_are_counted_and_refused(prompt, what):
    with pytest.raises(InvalidRequest, match=what) as refusal:
        COMPLETION_DECODER.decode(completion(prompt))
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize(
    "prompt",
    [[[1, 2]] * MAX_PROMPTS, ['",[' * 50] * 100, ["\\" * 50] * MAX_PROMPTS, '",[' * 10_000, [1] * 100_000],
    ids=["lists", "quotes and commas", "backslashes", "one text", "ids"],
)
def test_as_many_as_are_allowed_are_decoded_whatever_their_text_holds(prompt):
    decoded, _ = COMPLETION_DECODER.decode(completion(prompt))
    assert decoded.prompt == prompt
    assert 1 <= len(completion_prompts(decoded)) <= MAX_PROMPTS


def embedding(given):
    return json.dumps({"model": "m", "input": given}).encode()


@pytest.mark.parametrize("given", [[1] * (MAX_ENTRIES + 1), [[1] * 500] * 1000], ids=["ids", "lists"])
def test_token_ids_that_are_embedded_are_limited_like_those_of_prompts(given):
    assert EMBEDDING_DECODER.decode(embedding(given))[0].input == given
    with pytest.raises(InvalidRequest, match="at most") as refusal:
        EMBEDDING_DECODER.decode(embedding(given * 150))
    assert refusal.value.param == "input"


PARTS = [{"type": "text", "text": "a"}] * (MAX_ENTRIES // 2 + 1)
CALLS = [{"function": {"name": "f", "arguments": "{}"}}] * (MAX_ENTRIES // 2 + 1)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": PARTS * 2}],
        [{"role": "user", "content": PARTS}, {"role": "system", "content": PARTS}],
        [{"role": "assistant", "tool_calls": CALLS * 2}],
        [{"role": "assistant", "content": PARTS, "tool_calls": CALLS}],
        [{"role": "assistant", "content": "a", "annotations": [1] * (MAX_ENTRIES + 1)}],
    ],
    ids=["parts", "parts in two messages", "calls", "parts and calls", "annotations"],
)
def test_parts_and_calls_of_all_messages_are_limited_together(messages):
    decoded, _ = CHAT_DECODER.decode(chat(messages=messages))
    with pytest.raises(InvalidRequest, match=f"at most {MAX_ENTRIES}") as refusal:
        chat_conversation(decoded)
    assert refusal.value.param == "messages"


def test_thousands_of_unknown_names_are_refused_at_every_level():
    names = {f"x{number}": 1 for number in range(1000)}
    for body in (chat(**names), chat(messages=[{"role": "user", "content": "a", **names}])):
        with pytest.raises(UnknownField, match="more than 64"):
            CHAT_DECODER.decode(body, "ignore")


async def test_the_refusal_reaches_the_client_in_the_official_shape(shared_client):
    response = await shared_client.post(CHAT, content=chat(stop_token_ids=[1] * MAX_FIELD_BYTES))
    assert error_of(response, 400)["param"] == "stop_token_ids"
    response = await shared_client.post(COMPLETIONS, content=completion([1] * (MAX_TOKEN_IDS + 1)))
    assert error_of(response, 400)["param"] == "prompt"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\ud800", r"\ud800"),
        (r"\udc00", r"\udc00"),
        (r"\uD83D\ude00\uDBFF", r"\uDBFF"),
        (r"\ud83dx\ude00", r"\ud83d"),
        (r"\\\ud800", r"\ud800"),
    ],
)
def test_half_a_character_is_named_wherever_it_stands(text, found):
    body = f'{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}'.encode()
    with pytest.raises(InvalidRequest) as refusal:
        CHAT_DECODER.decode(body)
    assert f"{found} at byte" in refusal.value.message


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\\ud800", r"\\\\udc00"])
def test_whole_characters_and_escaped_backslashes_are_fine(text):
    body = f'{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}'.encode()
    assert CHAT_DECODER.decode(body)[0].messages[0].content == json.loads(f'"{text}"')


async def test_values_in_messages_are_counted_before_they_are_read(shared_client):
    part = {"type": "text", "text": "{" * 10}
    for content in ({"content": [part] * (MAX_VALUES // 4)}, {"content": "x", "name": [[1]] * MAX_VALUES}):
        many = [{"role": "user", **content}]
        error = error_of(await shared_client.post(CHAT, json=chat_body(messages=many)), 400)
        assert (error["param"], "values" in error["message"]) == ("messages", True)
    text = '{"' * (MAX_VALUES + 1)
    answer = await shared_client.post(CHAT, json=chat_body(messages=[{"role": "user", "content": text}]))
    assert "values" not in answer.text


async def test_tools_are_counted(shared_client):
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(MAX_TOOLS + 1)]
    error = error_of(await shared_client.post(CHAT, json=chat_body(tools=tools)), 400)
    assert (error["param"], str(MAX_TOOLS) in error["message"]) == ("tools", True)
