"""Every request field does what the table says: generated from the official client's types and the table itself."""

import typing

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from limelight.http import HttpSettings
from limelight.http.protocol.chat import ChatRequest
from limelight.http.protocol.completions import CompletionRequest
from limelight.http.protocol.decoding import near_miss
from limelight.http.protocol.fields.chat import CHAT_FIELDS
from limelight.http.protocol.fields.completions import COMPLETION_FIELDS
from limelight.http.protocol.fields.field import Effect
from limelight.http.protocol.fields.other_engines import OTHER_ENGINES
from limelight.parsing.answer_format import AnswerFormat
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, error_of

pytestmark = pytest.mark.anyio

WORKING = {
    "model": "scripted",
    "messages": HI,
    "prompt": "hi",
    "n": 2,
    "stream": False,
    "stream_options": {"include_usage": True, "include_obfuscation": True},
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "seed": 3,
    "stop": ["zzz"],
    "stop_token_ids": [200],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "min_tokens": 2,
    "skip_special_tokens": False,
    "logit_bias": {"97": -1},
    "prompt_logprobs": 1,
    "logprob_token_ids": [97],
    "return_tokens_as_token_ids": True,
    "priority": 1,
    "max_queue_ms": 60_000,
    "max_ttft_ms": 60_000,
    "max_total_ms": 60_000.5,
    "cache_salt": "mine",
    "request_id": "abc",
    "return_timings": True,
    "top_logprobs": 2,
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
    "add_generation_prompt": True,
    "continue_final_message": False,
    "echo": True,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "functions": [{"name": "f", "parameters": {}}],
    "function_call": "none",
    "response_format": {"type": "json_object"},
    "include_reasoning": False,
    "add_special_tokens": False,
    "bad_words": ["never"],
    "allowed_token_ids": [97, 98],
    "thinking_token_budget": -1,
    "structured_outputs": {"regex": "a*"},
    "repetition_detection": {"max_pattern_size": 3, "min_count": 3},
    "detokenize": False,
    "stream_interval": 2,
    "truncate_prompt_tokens": 1,
    "truncation_side": "right",
    "return_token_ids": True,
    "return_prompt_text": True,
    "return_token_offsets": True,
    "skip_reading_prefix_cache": True,
    "documents": [{"title": "t", "text": "x"}],
    "chat_template": "{{ messages[0].content }}",
}
"""A value for every field that works."""

FILED = {
    "user": "u",
    "session_id": "s",
    "spaces_between_special_tokens": False,
    "metadata": {"topic": "t"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
}
"""A value for every field without effect."""

UNWANTED = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "verbosity": "low",
    "web_search_options": {},
    "moderation": {"mode": "score"},
    "suffix": "end",
    "best_of": 3,
}
"""A value for every refused field that asks for something."""

ENDPOINTS = {
    CHAT: (
        CHAT_FIELDS,
        ChatRequest,
        chat_body,
        (chat_create_params.CompletionCreateParamsNonStreaming, chat_create_params.CompletionCreateParamsStreaming),
        {"logprobs": True},
    ),
    COMPLETIONS: (
        COMPLETION_FIELDS,
        CompletionRequest,
        completion_body,
        (
            completion_create_params.CompletionCreateParamsNonStreaming,
            completion_create_params.CompletionCreateParamsStreaming,
        ),
        {"logprobs": 2},
    ),
}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_table_has_every_parameter_of_the_official_client(path):
    fields, _, _, official, _ = ENDPOINTS[path]
    names = set().union(*(typing.get_type_hints(kind) for kind in official))
    assert len(names) > 15
    assert names <= fields.keys()


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_typed_request_has_exactly_the_fields_that_the_table_accepts(path):
    fields, body, _, _, _ = ENDPOINTS[path]
    accepted = {name for name, field in fields.items() if field.effect is not Effect.REFUSED}
    assert set(body.__struct_fields__) == accepted
    assert not OTHER_ENGINES.keys() & fields.keys()


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_server_does_with_every_field_what_the_table_says(serve, path):
    engine = scripted_engine(answer_format=AnswerFormat(tool_format="hermes", renders_tools=True, renders_calls=True))
    async with serve(engine, HttpSettings(trust_request_chat_template=True)) as client:
        await check_every_field(client, path)


async def check_every_field(client, path):
    fields, _, body, _, special = ENDPOINTS[path]
    plain = (await client.post(path, json=body(seed=1, max_tokens=6))).json()["choices"]
    for name, field in fields.items():
        if field.effect is Effect.REFUSED:
            error = error_of(await client.post(path, json=body(**{name: UNWANTED[name]})), 400)
            assert (error["code"], error["param"]) == ("unsupported_parameter", name)
            assert field.note in error["message"]
            for harmless in (None, *field.accepts):
                same = await client.post(path, json=body(seed=1, max_tokens=6, **{name: harmless}))
                assert same.json()["choices"] == plain, name
        elif field.effect is Effect.NO_EFFECT:
            same = await client.post(path, json=body(seed=1, max_tokens=6, **{name: FILED[name]}))
            assert same.json()["choices"] == plain, name
        else:
            value = special.get(name, WORKING.get(name))
            assert value is not None, name
            with_others = {"stream": True} if name == "stream_options" else {}
            with_others |= {"logprobs": True} if name in ("top_logprobs", "logprob_token_ids") and path == CHAT else {}
            answer = await client.post(path, json=body(max_tokens=6) | with_others | {name: value})
            assert answer.status_code == 200, (name, answer.text)
            assert "x-limelight-ignored-fields" not in answer.headers


class Heard:
    """A script that remembers the sampling of each request, and the prompt."""

    def __init__(self):
        self.sampling = []

    def __call__(self, turn):
        self.sampling.append(turn.sampling)
        return 97


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_sampling_values_reach_the_device(serve, path, body):
    heard = Heard()
    asked = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.25,
        "seed": 11,
    }
    async with serve(scripted_engine(heard)) as client:
        await client.post(path, json=body(max_tokens=1, logit_bias={"5": -7.5}, **asked))
    assert {name: getattr(heard.sampling[0], name) for name in asked} == asked
    assert heard.sampling[0].logit_bias == {5: -7.5}


async def test_text_controls_have_their_effect(serve):
    async with serve(scripted_engine("ab<|end|>")) as client:

        async def text(**fields):
            choice = (await client.post(CHAT, json=chat_body(**fields))).json()["choices"][0]
            return choice["message"]["content"], choice["finish_reason"]

        assert await text(stop="b") == ("a", "stop")
        assert await text(stop="b", include_stop_str_in_output=True) == ("ab", "stop")
        assert await text(stop_token_ids=[98]) == ("a", "stop")
        assert await text(logit_bias={"120": 100}, max_tokens=3) == ("xxx", "length")
        assert await text(max_tokens=1) == ("a", "length")
        assert (await text(ignore_eos=True, max_tokens=20, skip_special_tokens=False))[0].count("<|end|>") > 1


async def test_another_engines_field_is_refused_with_advice_unless_it_changes_nothing(shared_client):
    for name, field in OTHER_ENGINES.items():
        error = error_of(await shared_client.post(CHAT, json=chat_body(**{name: "!"})), 400)
        assert (error["code"], error["param"]) == ("unknown_parameter", name)
        assert field.note in error["message"]
        for harmless in field.accepts:
            answer = await shared_client.post(CHAT, json=chat_body(max_tokens=1, **{name: harmless}))
            assert answer.status_code == 200, (name, harmless, answer.text)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("top-p", "top_p"),
        ("topK", "top_k"),
        ("stops", "stop"),
        ("Seed", "seed"),
        ("max_completions_tokens", "max_completion_tokens"),
        ("mesages", "messages"),
        ("strean", "stream"),
        ("foo", None),
        ("x" * 1000, None),
    ],
)
def test_near_misses_are_recognised(name, meant):
    assert near_miss(name, tuple(CHAT_FIELDS)) == meant


@pytest.mark.parametrize(
    ("mode", "strange", "misspelt", "foreign"),
    [("suggest", 200, 400, 400), ("refuse", 400, 400, 400), ("ignore", 200, 200, 200)],
)
async def test_the_three_ways_with_unknown_fields(serve, mode, strange, misspelt, foreign, caplog):
    async with serve(settings=HttpSettings(unknown_fields=mode)) as client:
        for name, status in (("x_strange", strange), ("temprature", misspelt), ("guided_json", foreign)):
            for _ in range(2):
                answer = await client.post(CHAT, json=chat_body(max_tokens=1, **{name: {}}))
                assert answer.status_code == status, name
                if status == 200:
                    assert answer.headers["x-limelight-ignored-fields"] == name
                    assert caplog.text.count(name) == 1
        error_of(await client.post(CHAT, json=chat_body(audio=UNWANTED["audio"])), 400)


async def test_ignored_names_cannot_break_a_header_and_are_not_listed_without_end(shared_client):
    strange = {"a\r\nset-cookie: x=1": 1, "ümlaut": 1, "k" * 500: 1}
    answer = await shared_client.post(CHAT, json=chat_body(max_tokens=1, **strange))
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    named = answer.headers["x-limelight-ignored-fields"].split(", ")
    assert sorted(named) == sorted(["a??set-cookie??x?1", "?mlaut", "k" * 64])
    many = {f"strange{number}": 1 for number in range(40)}
    answer = await shared_client.post(CHAT, json=chat_body(max_tokens=1, **many))
    assert answer.headers["x-limelight-ignored-fields"].endswith("and-24-more")
    error_of(await shared_client.post(CHAT, json=chat_body(**{f"strange{number}": 1 for number in range(65)})), 400)


async def test_unknown_message_fields_are_named_in_the_header(shared_client):
    messages = [{"role": "user", "content": "x", "id": "msg_1"}, {"role": "user", "content": "y", "id": "msg_2"}]
    answer = await shared_client.post(CHAT, json=chat_body(max_tokens=1, messages=messages))
    assert answer.headers["x-limelight-ignored-fields"] == "messages[].id"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_slips_within_objects_are_told_and_other_names_are_listed(serve, path):
    body = chat_body if path == CHAT else completion_body
    async with serve() as client:
        asked = body(stream=True, stream_options={"include_usages": True})
        error = error_of(await client.post(path, json=asked), 400)
        assert error["param"] == "stream_options.include_usages"
        assert "include_usage?" in error["message"]
        asked = body(structured_outputs={"regex": "a", "backend": "x"}, max_tokens=2)
        answer = await client.post(path, json=asked)
        assert answer.headers["x-limelight-ignored-fields"] == "structured_outputs.backend"
