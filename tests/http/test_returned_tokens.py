"""Fields that ask for more than text: token ids, the prompt as the model got it, and why an answer ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.http import HttpSettings
from limelight.http.protocol.completions import CompletionChoice, CompletionRequest
from limelight.http.protocol.returned_tokens import MAX_PIECE_TOKENS, ReturnedTokens
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, by_choice, chat_body, completion_body, error_of, streamed

pytestmark = pytest.mark.anyio

ENDPOINTS = pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
ASKED = {"return_token_ids": True, "return_prompt_text": True, "return_token_offsets": True}
PROMPT_FIELDS = ("prompt_token_ids", "prompt_text", "prompt_token_offsets")


def new_text(choice):
    return choice.get("text", choice.get("delta", {}).get("content", ""))


def joined(parts, name):
    """The pieces of `name` in a stream, put together."""
    pieces = [part[name] for part in parts if name in part]
    if not pieces or isinstance(pieces[0], str):
        return "".join(pieces)
    return [entry for piece in pieces for entry in piece]


def prompts_of(path, answers):
    """Where the prompt's fields stand: beside the choices of a chat, inside those of a completion."""
    return answers if path == CHAT else [choice for answer in answers for choice in answer["choices"]]


@ENDPOINTS
@pytest.mark.parametrize("length", [3, 3000])
@pytest.mark.parametrize("logprobs", [{}, {"logprobs": 1}])
async def test_ids_and_prompt_are_the_same_whole_and_streamed_whatever_their_length(
    serve, path, body, length, logprobs
):
    prompt = "é" * length
    given = {"prompt": prompt} if path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
    if path == CHAT:
        logprobs = {name: bool(value) for name, value in logprobs.items()}
    asked = body(max_tokens=20, seed=1, **given, **ASKED, **logprobs)
    async with serve(scripted_engine("abc" * 9, num_pages=1024, max_model_len=16_000)) as client:
        whole = (await client.post(path, json=asked)).json()
        chunks = streamed(await client.post(path, json=asked | {"stream": True}))
    [choice] = whole["choices"]
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    assert bytes(choice["token_ids"]).decode() == text
    assert joined(by_choice(chunks)[0], "token_ids") == choice["token_ids"]
    assert "".join(map(new_text, by_choice(chunks)[0])) == text
    [told] = prompts_of(path, [whole])
    assert prompt in told["prompt_text"]
    ids = [token_id for token_id in told["prompt_token_ids"] if token_id < 256]
    assert bytes(ids).decode() == told["prompt_text"]
    assert len(told["prompt_token_offsets"]) == len(told["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert told["prompt_token_offsets"][-1][1] == len(told["prompt_text"])
    for name in PROMPT_FIELDS:
        assert joined(prompts_of(path, chunks), name) == told[name]


@given(st.integers(0, 5 * MAX_PIECE_TOKENS), st.integers(0, 3))
def test_ids_are_spread_over_the_chunks_of_a_delta_in_order_and_fit_a_frame(num_tokens, num_chunks):
    empty = CompletionChoice(index=0, text="")
    chunks = [CompletionChoice(index=0, text=str(number)) for number in range(num_chunks)]
    returned = ReturnedTokens(CompletionRequest(model="m", prompt="p", return_token_ids=True))
    spread = list(returned.spread(chunks, range(num_tokens), empty))
    assert [token_id for chunk in spread for token_id in chunk.token_ids] == list(range(num_tokens))
    assert all(len(chunk.token_ids) <= MAX_PIECE_TOKENS for chunk in spread)
    assert [chunk.text for chunk in spread if chunk.text] == [chunk.text for chunk in chunks]
    assert not chunks or spread[-1].text == chunks[-1].text


@ENDPOINTS
async def test_what_is_not_asked_for_is_not_there(shared_client, path, body):
    whole = (await shared_client.post(path, json=body(max_tokens=3))).json()
    chunks = streamed(await shared_client.post(path, json=body(max_tokens=3, stream=True)))
    for answer in (whole, *chunks):
        for entry in (answer, *answer["choices"]):
            assert not {"token_ids", *PROMPT_FIELDS} & entry.keys()


async def test_a_prompt_of_token_ids_has_no_text_and_no_offsets(shared_client):
    body = completion_body(prompt=[97, 98], max_tokens=1, **ASKED)
    [choice] = (await shared_client.post(COMPLETIONS, json=body)).json()["choices"]
    assert [choice[name] for name in PROMPT_FIELDS] == [[97, 98], None, None]


async def test_each_of_several_prompts_comes_with_its_own_choices(shared_client):
    body = completion_body(prompt=["a", "bc"], n=2, max_tokens=2, return_token_ids=True, add_special_tokens=False)
    whole = (await shared_client.post(COMPLETIONS, json=body)).json()["choices"]
    chunks = by_choice(streamed(await shared_client.post(COMPLETIONS, json=body | {"stream": True, "echo": True})))
    for choice, prompt in zip(whole, ("a", "a", "bc", "bc"), strict=True):
        parts = chunks[choice["index"]]
        assert choice["prompt_token_ids"] == joined(parts, "prompt_token_ids") == list(prompt.encode())
        assert parts[0]["text"] == prompt


@ENDPOINTS
async def test_a_finer_reason_has_a_field_of_its_own(serve, path, body):
    detection = {"max_pattern_size": 1, "min_count": 3}
    async with serve(scripted_engine("abccccc")) as client:
        for asked, reasons in (
            ({"repetition_detection": detection}, ("stop", None, "repetition")),
            ({"stop": "c"}, ("stop", "c", None)),
            ({"stop_token_ids": [99]}, ("stop", 99, None)),
            ({"max_tokens": 2}, ("length", None, None)),
            ({}, ("stop", None, None)),
        ):
            [choice] = (await client.post(path, json=body(**asked))).json()["choices"]
            chunks = by_choice(streamed(await client.post(path, json=body(stream=True, **asked))))[0]
            for ended in (choice, chunks[-1]):
                assert (ended["finish_reason"], ended["stop_reason"], ended["finish_details"]) == reasons, asked
            assert not any("finish_details" in chunk for chunk in chunks[:-1])


@ENDPOINTS
async def test_a_stream_gives_news_after_as_many_tokens_as_it_asks_for(shared_client, path, body):
    asked = body(max_tokens=20, stream=True, stream_interval=7, seed=1, return_token_ids=True)
    chunks = by_choice(streamed(await shared_client.post(path, json=asked)))[0]
    sizes = [len(chunk["token_ids"]) for chunk in chunks if chunk.get("token_ids")]
    assert sum(sizes) == 20
    assert all(size >= 7 for size in sizes[1:-1])
    plain = (await shared_client.post(path, json=body(max_tokens=20, seed=1))).json()["choices"][0]
    assert "".join(map(new_text, chunks)) == (plain.get("text") or plain["message"]["content"])


@ENDPOINTS
async def test_without_text_there_are_tokens(shared_client, path, body):
    asked = body(max_tokens=5, detokenize=False, return_token_ids=True, stream=True)
    chunks = by_choice(streamed(await shared_client.post(path, json=asked)))[0]
    assert "".join(map(new_text, chunks)) == ""
    assert len(joined(chunks, "token_ids")) == 5
    error = error_of(await shared_client.post(path, json=body(detokenize=False, stop="x")), 400)
    assert error["param"] == "stop"


async def test_a_long_prompt_is_cut_only_when_the_request_says_so(serve):
    async with serve(scripted_engine(max_model_len=100)) as client:

        async def ask(status=200, **fields):
            body = completion_body(prompt="x" * 200 + "y" * 200, max_tokens=40, add_special_tokens=False, **fields)
            answer = await client.post(COMPLETIONS, json=body | {"return_token_ids": True})
            return error_of(answer, status) if status >= 400 else answer.json()["choices"][0]["prompt_token_ids"]

        assert (await ask(400))["code"] == "context_length_exceeded"
        assert await ask(truncate_prompt_tokens=3) == list(b"yyy")
        assert await ask(truncate_prompt_tokens=3, truncation_side="right") == list(b"xxx")
        assert await ask(truncate_prompt_tokens=-1) == list(b"y" * 60)
        assert (await ask(400, truncate_prompt_tokens=0))["param"] == "truncate_prompt_tokens"
        assert (await ask(400, truncate_prompt_tokens=-2))["param"] == "truncate_prompt_tokens"
        assert (await ask(400, truncate_prompt_tokens=3, truncation_side="middle"))["param"] == "truncation_side"
        assert (await ask(400, truncate_prompt_tokens=3, echo=True))["param"] == "truncate_prompt_tokens"


async def test_an_echoing_chat_begins_with_the_last_message_of_the_assistant(shared_client):
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "So it"}]
    for messages, begins in ((turns, "So it"), (turns[:1], "")):
        body = chat_body(messages=messages, max_tokens=3, seed=1)
        plain = (await shared_client.post(CHAT, json=body)).json()["choices"][0]["message"]["content"]
        echoed = (await shared_client.post(CHAT, json=body | {"echo": True})).json()["choices"][0]["message"]["content"]
        chunks = by_choice(streamed(await shared_client.post(CHAT, json=body | {"echo": True, "stream": True})))[0]
        assert echoed == begins + plain == "".join(map(new_text, chunks))
        assert chunks[0]["delta"]["role"] == "assistant"


async def test_a_request_may_bring_a_template_only_where_it_is_trusted(serve):
    body = chat_body(chat_template="<{{ messages[0].content }}>", max_tokens=1, return_prompt_text=True)
    async with serve() as client:
        error = error_of(await client.post(CHAT, json=body), 400)
        assert (error["code"], error["param"]) == ("unsupported_parameter", "chat_template")
        assert "--trust-request-chat-template" in error["message"]
    async with serve(settings=HttpSettings(trust_request_chat_template=True)) as client:
        assert (await client.post(CHAT, json=body)).json()["prompt_text"] == "<hi>"
        broken = chat_body(chat_template="{% if %}")
        assert error_of(await client.post(CHAT, json=broken), 400)["param"] == "chat_template"


async def test_a_cached_prefix_is_read_unless_the_request_says_no(shared_client):
    async def cached(**fields):
        body = completion_body(prompt="p" * 100, max_tokens=1, **fields)
        usage = (await shared_client.post(COMPLETIONS, json=body)).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert await cached() == 0
    assert await cached(skip_reading_prefix_cache=True) == 0
    assert await cached() == 96
