"""Clients that leave the default model in the middle of its work: whatever it was doing, everything comes back at once.

Aborts before tokenizing, in mid-prefill and in mid-answer on the scripted engine are in the tests of the engine and of
disconnects; here each is a real socket, a real forward pass, and the pages of a small pool.
"""

import asyncio
import gc
import random

import anyio
import anyio.lowlevel
import pytest

from limelight.generation import SamplingParams
from limelight.http import create_app
from tests.cases.small_engines import (
    GREEDY,
    Gate,
    chat,
    completion,
    default_engine,
    idle,
    ids,
    model_client,
    one_by_one,
    until,
)
from tests.http.test_disconnect import send_request
from tests.http.wire import CHAT, COMPLETIONS, by_choice, running_server, streamed

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.usefixtures("default_model")]

ENDLESS = {"ignore_eos": True, "max_tokens": 1000}


def tables_are_empty(engine):
    """Nothing of a past request is left: requests, sequences, steps, queue, pages, seats."""
    parts = engine._system._parts
    planner = parts.planner
    return (
        idle(engine)
        and len(parts.live) == 0
        and not planner._live
        and not planner._in_flight
        and not planner._waiting.sequences()
        and not planner._residents.running
    )


async def closed_within_a_few_steps(engine, client, condition):
    """Close the connection; the condition must hold long before the answers' thousand tokens are through.

    On an idle machine it holds after the step in hand and the next; a busy one may be late to hear of the close.
    """
    before = engine.statistics().num_steps
    await client.aclose()
    await until(condition, 60)
    assert engine.statistics().num_steps - before <= 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)], ids=["chat", "completion"])
async def test_clients_that_hang_up_while_tokens_come_leave_an_idle_server(path, body, stream):
    async with default_engine() as engine, running_server(create_app(engine)) as port:
        for _ in range(2):
            clients = [await send_request(port, path, body(stream=stream, **ENDLESS)) for _ in range(4)]
            await until(lambda: engine.statistics().num_running == 4)
            for client in clients[1:]:
                await client.aclose()
            await until(lambda: engine.statistics().num_requests == 1, 5)
            await closed_within_a_few_steps(engine, clients[0], lambda: tables_are_empty(engine))
        started = engine.statistics().num_steps
        generation = await engine.generate("hi", GREEDY)
        assert generation.usage.completion_tokens == 8
        assert engine.statistics().num_steps - started <= 8 + 1, "as on an idle server"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_while_queued_or_in_prefill_gives_its_place_back(stream):
    gate = Gate(passing=1)
    async with (
        default_engine(max_num_seqs=1, max_num_batched_tokens=32, before_step=gate) as engine,
        running_server(create_app(engine)) as port,
    ):
        prefills = await send_request(port, COMPLETIONS, completion(ids(200), stream=stream, **ENDLESS))
        await until(lambda: len(gate.steps) == 2)
        assert not any(chunk.sample for step in gate.steps for chunk in step.chunks)
        queued = await send_request(port, COMPLETIONS, completion(ids(20, seed=1), stream=stream, **ENDLESS))
        await until(lambda: engine.statistics().num_waiting == 1)
        await queued.aclose()
        # While a step is held: giving up a place waits for no step.
        await until(lambda: engine.statistics().num_waiting == 0, 1)
        assert engine.statistics().num_requests == 1
        await prefills.aclose()
        await until(lambda: idle(engine), 1)
        gate.open()
        await until(lambda: tables_are_empty(engine), 5)
        assert not any(chunk.sample for step in gate.steps for chunk in step.chunks), "no token was drawn for them"


def pending_generators():
    """Ours that have begun and not ended."""
    pending = [each for each in gc.get_objects() if type(each).__name__ == "async_generator" and each.ag_frame]
    return [each for each in pending if "limelight" in each.ag_code.co_filename]


async def test_streams_that_are_cut_at_any_chunk_leave_no_task_generator_or_page():
    async with default_engine() as engine, model_client(engine) as client:
        body = chat(stream=True, **ENDLESS)
        tasks = None
        before = {id(each) for each in pending_generators()}
        for number in range(12):
            async with client.stream("POST", CHAT, json=body) as response:
                chunks = response.aiter_raw()
                for _ in range(number % 4):
                    await anext(chunks)
                await chunks.aclose()
            await until(lambda: tables_are_empty(engine), 5)
            if number == 0:
                tasks = len(asyncio.all_tasks())
        await until(lambda: len(asyncio.all_tasks()) <= tasks, 5)
        gc.collect()
        assert [each for each in pending_generators() if id(each) not in before] == []


@pytest.mark.parametrize("scores", [{}, {"logprobs": 3}, {"prompt_logprobs": 3}], ids=["text", "output", "prompt"])
async def test_a_hundred_aborts_at_random_moments_of_a_chunked_prompt_leave_all_tables_empty(scores):
    chance = random.Random(7)
    sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, **scores)
    after_abort = []
    async with default_engine(max_num_batched_tokens=16, max_num_seqs=8) as engine:
        [alone] = await one_by_one(engine, [(ids(56), GREEDY)])

        async def abort(number):
            start = engine.statistics().num_steps + chance.randrange(3)
            await until(lambda: engine.statistics().num_steps >= start, 60)
            async with engine.stream(ids(56, seed=number % 5), sampling) as stream:
                last_step = engine.statistics().num_steps + chance.randrange(6)
                for _ in range(chance.randrange(50)):
                    await anyio.lowlevel.checkpoint()
                await until(lambda: engine.statistics().num_steps >= last_step or number % 3 == 0, 60)
            after_abort.append((stream, len(stream._taken)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.generate, ids(30, seed=99), SamplingParams(max_tokens=400, ignore_eos=True))
            async with anyio.create_task_group() as aborts:
                for number in range(100):
                    aborts.start_soon(abort, number)
            tasks.cancel_scope.cancel()
        await until(lambda: tables_are_empty(engine), 5)
        for stream, num_taken in after_abort:
            assert len(stream._taken) == num_taken
            assert stream._actor.log.ended
        [again] = await one_by_one(engine, [(ids(56), GREEDY)])
        assert tables_are_empty(engine)
    assert len(after_abort) == 100
    assert again.outputs[0].token_ids == alone.outputs[0].token_ids


async def test_a_conversation_goes_on_after_a_turn_that_was_cut():
    """The third turn has the history of the second, which broke off after its first words."""
    first = [{"role": "user", "content": "Name a colour of the rainbow, and tell in a sentence why you like it."}]

    def turn(messages, **fields):
        return {"model": "SmolLM2-135M-Instruct", "messages": messages, "temperature": 0, "max_tokens": 6, **fields}

    async with default_engine() as engine, model_client(engine) as client:
        answer = (await client.post(CHAT, json=turn(first))).json()["choices"][0]["message"]["content"]
        second = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "And another?"}]
        async with client.stream("POST", CHAT, json=turn(second, stream=True, max_tokens=200)) as response:
            await anext(response.aiter_raw())
        third = (await client.post(CHAT, json=turn(second))).json()
        await until(lambda: tables_are_empty(engine), 5)
    async with default_engine() as engine, model_client(engine) as client:
        fresh = (await client.post(CHAT, json=turn(second))).json()
        chunks = streamed(await client.post(CHAT, json=turn(second, stream=True)))
    assert third["choices"] == fresh["choices"]
    text = "".join(choice["delta"].get("content", "") for choice in by_choice(chunks)[0])
    assert text == fresh["choices"][0]["message"]["content"]
    cached = third["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert fresh["usage"].pop("prompt_tokens_details")["cached_tokens"] == 0
    assert third["usage"] == fresh["usage"]
    assert cached == (third["usage"]["prompt_tokens"] - 1) // 16 * 16
