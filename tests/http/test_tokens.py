"""`/tokenize`, `/detokenize`, `/load` and `/ping`."""

import threading

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import InvalidRequest
from limelight.http import HttpSettings
from limelight.http.protocol.tokens import TOKENIZE_DECODER, tokenized_prompt
from limelight.testing import BEGIN, scripted_engine
from tests.http.wire import CHAT, HI, chat_body, error_of

pytestmark = pytest.mark.anyio

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


async def test_a_text_and_its_tokens_go_both_ways(shared_client):
    for body, tokens in (
        ({"prompt": "aé"}, [BEGIN, 97, 0xC3, 0xA9]),
        ({"model": "scripted", "prompt": "aé", "add_special_tokens": False}, [97, 0xC3, 0xA9]),
        ({"prompt": "", "add_special_tokens": False}, []),
    ):
        told = (await shared_client.post("/tokenize", json=body)).json()
        assert told == {"count": len(tokens), "max_model_len": 2048, "tokens": tokens, "token_strs": None}
        back = (await shared_client.post("/detokenize", json={"tokens": tokens})).json()
        assert back == {"prompt": "<|begin|>" * (BEGIN in tokens) + body["prompt"]}


async def test_each_token_has_its_own_text(shared_client):
    body = {"prompt": "aé", "return_token_strs": True}
    told = (await shared_client.post("/tokenize", json=body)).json()
    assert told["token_strs"] == ["<|begin|>", "a", "\ufffd", "\ufffd"]


async def test_a_conversation_has_the_tokens_that_a_chat_gets(serve):
    async with serve(settings=HttpSettings(trust_request_chat_template=True)) as client:
        for extra in (
            {},
            {"add_special_tokens": True},
            {"add_generation_prompt": False},
            {"messages": [*HI, {"role": "assistant", "content": "So"}], "continue_final_message": True},
            {"chat_template": "{{ x }}{{ messages[0].content }}", "chat_template_kwargs": {"x": "!"}},
        ):
            told = (await client.post("/tokenize", json={"messages": HI} | extra)).json()
            chat = chat_body(max_tokens=1, return_token_ids=True, **extra)
            assert told["tokens"] == (await client.post(CHAT, json=chat)).json()["prompt_token_ids"]
        template = "{{ tools | length }}"
        told = (await client.post("/tokenize", json={"messages": HI, "tools": TOOLS, "chat_template": template})).json()
        assert told["tokens"] == [ord("1")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": HI}, "prompt"),
        ({"prompt": "a", "tools": TOOLS}, "tools"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": HI, "chat_template": "x"}, "chat_template"),
        ({"prompt": "a", "add_special_token": True}, "add_special_token"),
    ],
)
async def test_a_wrong_body_is_refused_by_name(shared_client, body, param):
    assert error_of(await shared_client.post("/tokenize", json=body), 400)["param"] == param


async def test_foreign_tokens_and_models_are_refused(shared_client):
    for tokens in ([258], [-1], [2**62]):
        assert error_of(await shared_client.post("/detokenize", json={"tokens": tokens}), 400)["param"] == "tokens"
    assert error_of(await shared_client.post("/detokenize", json={}), 400)["param"] == "tokens"
    error_of(await shared_client.post("/tokenize", json={"prompt": "a", "model": "other"}), 404)
    error_of(await shared_client.post("/detokenize", json={"tokens": [1], "model": "other"}), 404)
    many = {"tokens": [1] * 100_000}
    assert len((await shared_client.post("/detokenize", json=many)).json()["prompt"]) == 100_000
    error_of(await shared_client.post("/detokenize", json={"tokens": [1] * (2**20 + 1)}), 400)


async def test_nothing_is_encoded_on_the_event_loop(serve, monkeypatch):
    seen = set()
    engine = scripted_engine()
    async with serve(engine) as client:
        vocabulary = engine.model.vocabulary

        def watch(name):
            plain = getattr(type(vocabulary), name)

            def call(self, *given, **options):
                seen.add((name, threading.current_thread() is threading.main_thread()))
                return plain(self, *given, **options)

            monkeypatch.setattr(type(vocabulary), name, call)

        for name in ("encode", "decode", "token_bytes"):
            watch(name)
        await client.post("/tokenize", json={"prompt": "abc", "return_token_strs": True})
        await client.post("/detokenize", json={"tokens": [97]})
    assert seen == {("encode", False), ("decode", False), ("token_bytes", False)}


@given(st.dictionaries(st.sampled_from(["prompt", "add_special_tokens", "return_token_strs"]), st.none()))
def test_null_is_not_given(body):
    request, _ = TOKENIZE_DECODER.decode(b"{" + b",".join(b'"%s":null' % name.encode() for name in body) + b"}")
    with pytest.raises(InvalidRequest, match="either prompt"):
        tokenized_prompt(request)


async def test_the_load_is_told_while_requests_run_and_wait(serve):
    release = threading.Event()
    engine = scripted_engine(before_step=lambda _step: release.wait(60), max_num_seqs=1)
    async with serve(engine) as client:
        assert (await client.get("/load")).json() == {"server_load": 0, "num_running": 0, "num_waiting": 0}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.post(CHAT, json=chat_body(n=2, max_tokens=2)))
            with anyio.fail_after(60):
                while (load := (await client.get("/load")).json())["num_running"] != 1:
                    await anyio.lowlevel.checkpoint()
            release.set()
        assert load == {"server_load": 1, "num_running": 1, "num_waiting": 1}


async def test_ping_is_health_and_the_others_want_a_key(serve):
    async with serve(settings=HttpSettings(api_keys={"me": "secret"})) as client:
        for method in ("GET", "POST"):
            assert (await client.request(method, "/ping")).json() == (await client.get("/health")).json()
        for method, path in (("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/load")):
            error_of(await client.request(method, path, json={}), 401)
