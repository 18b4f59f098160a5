"""`/v1/chat/completions` over a real socket."""

import random

import msgspec
import pytest

from limelight.engine import Engine
from limelight.models.loaded_model import SamplingDefaults
from limelight.testing import babble, scripted_engine, scripted_model
from tests.http.wire import CHAT, HI, by_choice, chat_body, streamed

pytestmark = pytest.mark.anyio


async def test_an_answer_has_the_official_shape(serve):
    async with serve(scripted_engine("Grüße 😀")) as client:
        response = await client.post(CHAT, json=chat_body())
    answer = response.json()
    assert response.status_code == 200
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "scripted"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Grüße 😀", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


@pytest.mark.parametrize("n", [1, 3])
async def test_every_choice_is_a_role_chunk_then_text_then_one_empty_final_chunk(serve, n):
    async with serve() as client:
        request = chat_body(stream=True, n=n, max_tokens=5, seed=3)
        frames = streamed(await client.post(CHAT, json=request))
        whole = (await client.post(CHAT, json=request | {"stream": False})).json()
    assert len({(frame["id"], frame["created"], frame["object"], frame["model"]) for frame in frames}) == 1
    assert not any("usage" in frame for frame in frames)
    choices = by_choice(frames)
    assert sorted(choices) == list(range(n))
    for index, (first, *middle, last) in choices.items():
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] and choice["finish_reason"] is None for choice in middle)
        assert (last["delta"], last["finish_reason"]) == ({}, "length")
        text = "".join(choice["delta"]["content"] for choice in middle)
        assert text == whole["choices"][index]["message"]["content"]
    assert len({choice["message"]["content"] for choice in whole["choices"]}) == n


async def test_include_usage_puts_null_on_every_chunk_and_the_counts_on_a_last_one_without_choices(serve):
    async with serve() as client:
        request = chat_body(stream=True, max_tokens=4, n=2, stream_options={"include_usage": True})
        *frames, last = streamed(await client.post(CHAT, json=request))
        whole = (await client.post(CHAT, json=chat_body(max_tokens=4, n=2))).json()
    assert all(frame["usage"] is None and frame["choices"] for frame in frames)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


async def test_continuous_usage_counts_up_on_every_chunk(serve):
    async with serve() as client:
        options = {"include_usage": True, "continuous_usage_stats": True}
        request = chat_body(stream=True, max_tokens=4, stream_options=options)
        frames = streamed(await client.post(CHAT, json=request))
    counts = [frame["usage"]["completion_tokens"] for frame in frames]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert len({frame["usage"]["prompt_tokens"] for frame in frames}) == 1


async def test_a_matched_stop_string_ends_the_stream_with_an_empty_final_chunk(serve):
    async with serve(scripted_engine("one two three")) as client:
        frames = streamed(await client.post(CHAT, json=chat_body(stream=True, stop=[" thr"])))
    choices = by_choice(frames)[0]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "one two"
    assert (choices[-1]["delta"], choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ({}, "stop", " thr")


async def test_streamed_log_probabilities_are_those_of_the_whole_answer(serve):
    async with serve(scripted_engine("aé😀z")) as client:
        request = chat_body(logprobs=True, top_logprobs=3)
        whole = (await client.post(CHAT, json=request)).json()
        frames = streamed(await client.post(CHAT, json=request | {"stream": True}))
    spoken = [choice for choice in by_choice(frames)[0] if choice["logprobs"]]
    entries = [entry for choice in spoken for entry in choice["logprobs"]["content"]]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    for choice in spoken:
        text = b"".join(bytes(e["bytes"]) for e in choice["logprobs"]["content"])
        assert text.decode() == choice["delta"]["content"]


async def test_without_a_limit_the_answer_fills_the_context_and_ends_with_length(serve):
    async with serve(scripted_engine(babble, max_model_len=100)) as client:
        answer = (await client.post(CHAT, json=chat_body())).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 100


async def test_max_completion_tokens_wins_over_max_tokens(serve):
    async with serve() as client:
        answer = (await client.post(CHAT, json=chat_body(max_tokens=9, max_completion_tokens=3))).json()
    assert answer["usage"]["completion_tokens"] == 3


async def test_an_explicit_null_is_the_same_as_leaving_the_field_out(serve):
    names = (
        "max_tokens max_completion_tokens stop tools tool_choice response_format logit_bias temperature top_p n stream "
        "stream_options logprobs top_logprobs user metadata parallel_tool_calls top_k min_p cache_salt priority "
        "functions function_call modalities audio prediction verbosity chat_template_kwargs guided_json"
    )
    optional = names.split()
    async with serve(scripted_engine("same")) as client:
        plain = await client.post(CHAT, json=chat_body(seed=1))
        nulls = await client.post(CHAT, json=chat_body(seed=1, **dict.fromkeys(optional)))
    assert nulls.status_code == 200, nulls.text
    assert nulls.json()["choices"] == plain.json()["choices"]


async def test_an_unfinished_assistant_message_can_be_continued(serve):
    prompts: list[bytes] = []

    def listen(turn):
        prompts.append(bytes(token_id for token_id in turn.prompt if token_id < 256))
        return 256

    conversation = [*HI, {"role": "assistant", "content": "Sure, "}]
    async with serve(scripted_engine(listen)) as client:
        await client.post(CHAT, json=chat_body(messages=conversation, continue_final_message=True))
        await client.post(CHAT, json=chat_body(messages=conversation, add_generation_prompt=False))
    assert prompts[0].endswith(b"assistant: Sure, ")
    assert prompts[1].endswith(b"assistant: Sure, \n")


async def test_values_that_are_left_out_are_the_models_own(serve):
    heard = []

    def load(config, report):
        model = scripted_model(lambda turn: heard.append(turn.sampling) or 97)(config, report)
        return msgspec.structs.replace(model, defaults=SamplingDefaults(temperature=0.25, top_k=7, max_tokens=3))

    async with serve(Engine("scripted", loader=load)) as client:
        answer = (await client.post(CHAT, json=chat_body(top_k=9))).json()
        short = (await client.post(CHAT, json=chat_body(max_tokens=1))).json()
    assert (heard[0].temperature, heard[0].top_k, heard[0].top_p) == (0.25, 9, 1.0)
    assert answer["usage"]["completion_tokens"] == 3
    assert short["usage"]["completion_tokens"] == 1


async def test_streamed_and_whole_answers_are_the_same_for_any_bytes_and_stop_strings(serve):
    letters = [*"aé東😀 ".encode(), 0xFF, 0x80, 256, 257]

    def script(turn):
        return random.Random(turn.sampling.seed * 1000 + turn.number).choice(letters)

    async with serve(scripted_engine(script)) as client:
        for seed in range(40):
            request = chat_body(
                seed=seed,
                n=1 + seed % 3,
                max_tokens=60,
                ignore_eos=seed % 4 == 0,
                logprobs=seed % 2 == 0,
                stop=["aa", "é"],
            )
            whole = (await client.post(CHAT, json=request)).json()["choices"]
            chunks = by_choice(streamed(await client.post(CHAT, json=request | {"stream": True})))
            for choice in whole:
                parts = chunks[choice["index"]]
                text = "".join(part["delta"].get("content", "") for part in parts)
                assert text == choice["message"]["content"]
                assert (parts[-1]["finish_reason"], parts[-1]["stop_reason"]) == (
                    choice["finish_reason"],
                    choice["stop_reason"],
                )
                if choice["logprobs"]:
                    entries = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
                    assert entries == choice["logprobs"]["content"]


async def test_seed_minus_one_counts_as_no_seed(serve):
    async with serve() as client:
        texts = {
            (await client.post(CHAT, json=chat_body(seed=-1, max_tokens=12))).json()["choices"][0]["message"]["content"]
            for _ in range(6)
        }
    assert len(texts) > 1
