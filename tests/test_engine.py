"""The whole actor system over the scripted model: lifetimes, cancellation, faults, limits."""

import asyncio
import gc
import random
import threading
import weakref

import anyio
import msgspec
import pytest

from limelight.config import EngineConfig, EngineOptions
from limelight.engine import Engine, EngineState
from limelight.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineFailed,
    EngineNotRunning,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    Overloaded,
    StepFailure,
)
from limelight.generation import Delta, FinishReason, GenerationRequest, SamplingParams, TextPrompt, TokensPrompt
from limelight.testing import babble, echo, scripted_engine

pytestmark = pytest.mark.anyio

ENDLESS = SamplingParams(max_tokens=None, seed=1)


def idle(engine):
    """Whether every page and seat is back and nothing is live."""
    numbers = engine.statistics()
    return (numbers.num_requests, numbers.num_running, numbers.num_waiting) == (0, 0, 0) and (
        numbers.num_free_seats,
        numbers.num_free_pages,
    ) == (numbers.num_seats, numbers.num_pages)


async def until_idle(engine):
    """Let the scheduler take its turn, then check."""
    with anyio.fail_after(60):
        while not idle(engine):
            await asyncio.sleep(0)


async def collect(engine, prompt, sampling):
    async with engine.stream(prompt, sampling) as stream:
        return [delta async for delta in stream]


# ---- the verbs


async def test_generate_returns_the_whole_answer_and_usage():
    async with scripted_engine("hello there") as engine:
        generation = await engine.generate("hi", SamplingParams(max_tokens=None))
    assert generation.text == "hello there"
    assert generation.prompt == "hi"
    assert generation.outputs[0].finish_reason is FinishReason.STOP
    assert generation.outputs[0].stop_reason is None, "the model's own end"
    assert (generation.usage.prompt_tokens, generation.usage.completion_tokens) == (3, 12)


async def test_a_stream_yields_deltas_whose_sum_is_the_whole():
    async with scripted_engine("héllo 😀") as engine:
        deltas = await collect(engine, "hi", SamplingParams(max_tokens=None))
        whole = await engine.generate("hi", SamplingParams(max_tokens=None))
    assert len(deltas) > 5
    assert "".join(delta.text for delta in deltas) == whole.text == "héllo 😀"
    assert deltas[-1].usage == whole.usage
    assert [delta.usage for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert all(isinstance(delta, Delta) for delta in deltas)


async def test_chat_goes_through_the_template():
    async with scripted_engine(echo) as engine:
        generation = await engine.chat([{"role": "user", "content": "ping"}])
    assert generation.prompt == "user: ping\nassistant:"
    assert generation.text == generation.prompt


async def test_token_prompts_are_used_as_they_are():
    async with scripted_engine(echo) as engine:
        generation = await engine.generate(list(b"abc"), SamplingParams(max_tokens=3))
    assert generation.prompt is None
    assert generation.prompt_token_ids == tuple(b"abc")
    assert generation.text == "abc"
    assert generation.outputs[0].finish_reason is FinishReason.LENGTH


async def test_no_limit_means_to_the_end_of_the_context():
    async with scripted_engine(babble, max_model_len=50) as engine:
        generation = await engine.generate(list(b"0123456789"), SamplingParams(max_tokens=None))
        last = await engine.generate(list(b"x" * 49), SamplingParams(max_tokens=1000))
    assert generation.usage.completion_tokens == 40
    assert last.usage.completion_tokens == 1
    assert last.outputs[0].finish_reason is FinishReason.LENGTH


async def test_choices_are_distinct_and_repeat_with_the_seed():
    sampling = SamplingParams(n=4, seed=7, max_tokens=12)
    async with scripted_engine(babble) as engine:
        first = await engine.generate("go", sampling)
        second = await engine.generate("go", sampling)
        deltas = await collect(engine, "go", sampling)
    texts = [output.text for output in first.outputs]
    assert len(set(texts)) == 4
    assert texts == [output.text for output in second.outputs]
    assert texts == ["".join(d.text for d in deltas if d.index == index) for index in range(4)]
    assert first.usage.prompt_tokens == 3
    assert first.usage.completion_tokens == 48


async def test_unseeded_requests_differ():
    async with scripted_engine(babble) as engine:
        texts = {(await engine.generate("go", SamplingParams(max_tokens=12))).text for _ in range(10)}
    assert len(texts) > 5


async def test_the_prompt_of_many_choices_is_computed_once():
    computed = []

    def before_step(step):
        computed.extend(chunk.num_tokens for chunk in step.chunks)

    async with scripted_engine(babble, before_step=before_step) as engine:
        generation = await engine.generate("x" * 319, SamplingParams(n=8, max_tokens=1))
    assert generation.usage.prompt_tokens == 320
    assert sum(computed) == 304 + 8 * 16, "whole pages once, the rest of the last page per choice"


# ---- limits and refusals


async def test_a_prompt_too_long_for_the_context_is_answered_at_once():
    async with scripted_engine(babble, max_model_len=64) as engine:
        for length in (64, 65, 5000):
            with anyio.fail_after(60), pytest.raises(ContextLengthExceeded, match=rf"{length} tokens.*length is 64"):
                await engine.generate(list(b"x" * length), ENDLESS)
        assert (await engine.generate(list(b"x" * 63), ENDLESS)).usage.completion_tokens == 1
        assert idle(engine)


async def test_a_refusal_names_the_field_that_the_client_sent():
    async with scripted_engine(babble, max_model_len=64, num_pages=3) as engine:
        for length in (70, 60):
            with pytest.raises(ContextLengthExceeded) as refusal:
                await engine.generate(list(b"x" * length), ENDLESS)
            assert refusal.value.param == "prompt"
            with pytest.raises(ContextLengthExceeded) as refusal:
                await engine.chat([{"role": "user", "content": "x" * (length - 17)}], ENDLESS)
            assert refusal.value.param == "messages"


async def test_a_prompt_larger_than_the_whole_pool_is_answered_at_once_and_blocks_nobody():
    async with scripted_engine("ok", num_pages=8, max_model_len=2048) as engine:
        with anyio.fail_after(60), pytest.raises(ContextLengthExceeded, match="150"):
            await engine.generate(list(b"x" * 150), ENDLESS)
        assert (await engine.generate("hi", ENDLESS)).text == "ok"
        await until_idle(engine)


async def test_a_request_that_outgrows_the_pool_ends_with_length():
    async with scripted_engine(babble, num_pages=8) as engine:
        generation = await engine.generate(list(b"x" * 100), ENDLESS)
        await until_idle(engine)
    assert generation.outputs[0].finish_reason is FinishReason.LENGTH
    assert generation.outputs[0].finish_details == "kv_cache_full"
    assert 27 <= generation.usage.completion_tokens <= 29


async def test_the_limit_of_live_requests_is_exact():
    async with scripted_engine(babble, max_num_requests=2, step_seconds=0.01) as engine:
        async with engine.stream("a", ENDLESS), engine.stream("b", ENDLESS):
            with pytest.raises(Overloaded, match="2 requests are live") as refusal:
                await engine.generate("c", ENDLESS)
            assert refusal.value.retry_after_seconds > 0
        await until_idle(engine)
        assert (await engine.generate("d", SamplingParams(max_tokens=2))).usage.completion_tokens == 2


async def test_token_ids_outside_the_vocabulary_are_refused():
    async with scripted_engine(babble) as engine:
        for prompt, sampling, field in (
            ([1, 258], ENDLESS, "prompt"),
            ([-1], ENDLESS, "prompt"),
            ([1], SamplingParams(stop_token_ids=[300]), "stop_token_ids"),
            ([1], SamplingParams(logit_bias={999: 1.0}), "logit_bias"),
        ):
            with pytest.raises(InvalidRequest, match="0 to 257") as refusal:
                await engine.generate(prompt, sampling)
            assert refusal.value.param == field


async def test_an_empty_prompt_and_a_template_refusal_reach_the_caller():
    async with scripted_engine(babble) as engine:
        with pytest.raises(InvalidRequest, match="empty"):
            await engine.generate([], ENDLESS)
        with pytest.raises(InvalidRequest, match="role is forbidden"):
            await engine.chat([{"role": "forbidden", "content": ""}])
        with pytest.raises(InvalidRequest, match="surrogate"):
            await engine.generate("\ud800", ENDLESS)
        assert idle(engine)


async def test_a_request_id_cannot_be_live_twice():
    async with scripted_engine(babble, step_seconds=0.01) as engine, engine.stream("a", ENDLESS, request_id="same"):
        with pytest.raises(InvalidRequest, match="'same' is in use"):
            await engine.generate("b", ENDLESS, request_id="same")


@pytest.mark.parametrize("field", ["request_id", "owner", "http_request_id"])
@pytest.mark.parametrize("name", [5, [], "half a pair \ud800", "x" * 301], ids=["number", "list", "surrogate", "long"])
async def test_names_that_could_not_be_shown_are_refused_and_harm_nobody(field, name):
    fields = {"request_id": "r", "prompt": TextPrompt("hi"), "sampling": SamplingParams(max_tokens=1), field: name}
    async with scripted_engine() as engine:
        with pytest.raises(InvalidRequest, match=f"{field} is .* at most 300 characters") as caught:
            async with engine.open(GenerationRequest(**fields)):
                pass
        assert caught.value.param == field
        with pytest.raises(ModelNotFound):
            await engine.generate("hi", ENDLESS, adapter="half a pair \ud800")
        await engine.generate("hi", SamplingParams(max_tokens=1))
        views = engine.requests(recent=3)
        assert [view.ending for view in views] == ["completed", "invalid", "invalid"]
        assert len(msgspec.json.encode(views)) < 5000


async def test_a_request_that_meets_a_bug_at_admission_has_ended():
    async with scripted_engine() as engine:
        request = GenerationRequest(request_id="r", prompt=TokensPrompt(5), sampling=ENDLESS)
        with pytest.raises(TypeError):
            await engine.open(request).__aenter__()
        (view,) = engine.requests(recent=1)
        assert (view.ending, view.error_code) == ("failed", "internal_error")


async def test_refused_requests_are_not_kept_by_what_is_remembered_of_them():
    class Prompt(TextPrompt, weakref=True):
        """One that can be watched."""

    def refused():
        prompt = Prompt("a secret")
        fields = {"request_id": "r", "prompt": prompt, "sampling": ENDLESS, "adapter": "unknown"}
        return weakref.ref(prompt), engine.open(GenerationRequest(**fields))

    async with scripted_engine() as engine:
        watched, opening = refused()
        with pytest.raises(ModelNotFound):
            await opening.__aenter__()
        del opening
        gc.collect()
        assert watched() is None
        assert engine.requests(recent=1)[0].error_code == "model_not_found"


# ---- life


async def test_starting_with_nothing_queued_works_and_stays_up():
    async with scripted_engine("fine") as engine:
        for _ in range(10):
            await asyncio.sleep(0)
        assert engine.state is EngineState.READY
        assert (await engine.generate("hi", ENDLESS)).text == "fine"


async def test_start_and_stop_may_come_from_different_tasks():
    engine = scripted_engine("ok")
    async with anyio.create_task_group() as group:
        group.start_soon(engine.start)
    assert (await engine.generate("hi", ENDLESS)).text == "ok"
    async with anyio.create_task_group() as group:
        group.start_soon(engine.stop)
        group.start_soon(engine.stop)
    assert engine.state is EngineState.STOPPED
    await engine.stop()


async def test_use_before_start_and_after_stop_is_a_clear_error():
    engine = scripted_engine("ok")
    with pytest.raises(EngineNotRunning, match="has not been started"):
        await engine.generate("hi", ENDLESS)
    await engine.start()
    with pytest.raises(EngineNotRunning, match="starts once"):
        await engine.start()
    await engine.stop()
    with pytest.raises(EngineNotRunning, match="is stopped"):
        await engine.generate("hi", ENDLESS)


async def test_stop_fails_live_requests_with_a_typed_error():
    engine = scripted_engine(babble, step_seconds=0.005)
    await engine.start()
    async with engine.stream("a", ENDLESS) as stream:
        await anext(stream)
        await engine.stop()
        with pytest.raises(EngineNotRunning, match="stopped"):
            await stream.result()


async def test_an_engine_leaves_no_thread_task_or_actor_behind():
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    engine = scripted_engine(babble)
    async with engine:
        inside = {thread.name for thread in threading.enumerate()} - {thread.name for thread in threads}
        assert all(name.startswith("limelight-") for name in inside)
        await asyncio.gather(*(engine.generate(f"{number}", SamplingParams(max_tokens=5)) for number in range(20)))
    assert set(threading.enumerate()) == threads
    assert asyncio.all_tasks() == tasks
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None


async def test_a_loader_that_fails_raises_in_start_and_leaves_nothing():
    def load(config, report):
        raise ModelError("no such model")

    threads = set(threading.enumerate())
    engine = Engine("missing", loader=load)
    with pytest.raises(ModelError, match="no such model"):
        await engine.start()
    assert set(threading.enumerate()) == threads


async def test_cancelling_start_ends_the_engine():
    release = threading.Event()

    def load(config, report):
        release.wait(10)
        raise ModelError("too late")

    threads = set(threading.enumerate())
    engine = Engine("slow", loader=load)
    async with anyio.create_task_group() as group:
        group.start_soon(engine.start)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        release.set()
    assert engine.state is EngineState.STOPPED
    assert set(threading.enumerate()) == threads


async def test_drain_finishes_running_requests_and_refuses_new_ones():
    async with scripted_engine("some words", step_seconds=0.002) as engine, engine.stream("a", ENDLESS) as stream:
        await anext(stream)
        async with anyio.create_task_group() as group:
            group.start_soon(engine.drain, 10)
            await anyio.wait_all_tasks_blocked()
            assert engine.state is EngineState.DRAINING
            with pytest.raises(Overloaded, match="shutting down"):
                await engine.generate("b", ENDLESS)
            assert (await stream.result()).text == "some words"


async def test_a_drain_is_bounded():
    async with scripted_engine(babble, max_model_len=2000, step_seconds=0.01) as engine, engine.stream("a", ENDLESS):
        assert await engine.drain(0.02) is False


async def test_use_from_another_event_loop_is_refused():
    async with scripted_engine("ok") as engine:
        errors = []

        def other_loop():
            try:
                asyncio.run(engine.generate("hi", ENDLESS))
            except EngineNotRunning as error:
                errors.append(str(error))

        thread = threading.Thread(target=other_loop)
        thread.start()
        thread.join()
    assert "another event loop" in errors[0]


async def test_two_engines_live_side_by_side():
    async with scripted_engine("one") as one, scripted_engine("two") as two:
        answers = await asyncio.gather(one.generate("hi", ENDLESS), two.generate("hi", ENDLESS))
    assert [answer.text for answer in answers] == ["one", "two"]


def test_an_engine_is_made_outside_of_any_loop_and_used_in_one():
    engine = scripted_engine("ok")

    async def use():
        async with engine:
            return (await engine.generate("hi", ENDLESS)).text

    assert asyncio.run(use()) == "ok"


async def test_draining_an_engine_that_is_not_up_is_over_at_once():
    assert await scripted_engine("ok").drain(1)


def test_wrong_options_are_refused_by_name():
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        Engine("x", max_num_seqs=0)
    with pytest.raises(ConfigError, match="page_size is 7"):
        Engine("x", page_size=7)


# ---- cancellation


async def test_leaving_a_stream_aborts_the_request():
    async with scripted_engine(babble, step_seconds=0.001) as engine:
        async with engine.stream("a", ENDLESS) as stream:
            await anext(stream)
        await until_idle(engine)


async def test_cancelling_generate_aborts_the_request():
    async with scripted_engine(babble, step_seconds=0.001) as engine:
        with anyio.move_on_after(0.02):
            await engine.generate("a", ENDLESS)
        await until_idle(engine)


async def test_200_cancels_at_random_moments_give_everything_back():
    chance = random.Random(0)
    tasks = asyncio.all_tasks()

    async def one(engine, number):
        prompt = "shared beginning " * chance.randrange(1, 8) + str(number)
        sampling = SamplingParams(n=chance.choice((1, 1, 2)), max_tokens=60, stop="qq")
        async with engine.stream(prompt, sampling) as stream:
            for _ in range(chance.randrange(0, 30)):
                if not await stream.next_deltas():
                    return

    async with scripted_engine(babble, num_pages=40, max_num_seqs=8, max_num_batched_tokens=64) as engine:
        for _ in range(10):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(one, engine, number)
                for _ in range(chance.randrange(0, 40)):
                    await asyncio.sleep(0)
                if chance.random() < 0.5:
                    group.cancel_scope.cancel()
        await until_idle(engine)
        assert engine.statistics().num_preemptions >= 0
    assert asyncio.all_tasks() == tasks


async def test_cancelled_while_queued_never_runs():
    gate = threading.Event()
    seats_taken = []

    def before_step(step):
        seats_taken.extend(step.taken)
        gate.wait(10)

    async with scripted_engine(babble, max_num_seqs=1, max_num_batched_tokens=64, before_step=before_step) as engine:
        async with engine.stream("running", ENDLESS):
            await anyio.wait_all_tasks_blocked()
            async with engine.stream("queued", ENDLESS):
                await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
            assert engine.statistics().num_waiting == 0
        gate.set()
        await until_idle(engine)
    assert len(seats_taken) == 1


# ---- faults


async def test_the_runner_dies_while_20_clients_wait():
    steps = []

    def before_step(step):
        steps.append(step)
        if len(steps) == 5:
            raise EngineFailed("the device fell off the bus")

    outcomes = []
    async with scripted_engine(babble, max_num_seqs=8, before_step=before_step) as engine:

        async def client(number):
            try:
                await engine.generate(f"client {number}", ENDLESS)
            except EngineFailed as error:
                outcomes.append(str(error))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(client, number)
        assert len(outcomes) == 20
        assert "fell off the bus" in outcomes[0]
        assert engine.state is EngineState.FAILED
        with pytest.raises(EngineFailed):
            await engine.generate("too late", ENDLESS)
        with pytest.raises(EngineFailed):
            engine.statistics()


@pytest.mark.parametrize("error", [SystemExit("thread asked to exit"), KeyboardInterrupt()])
async def test_a_runner_thread_that_is_killed_ends_the_engine_with_a_typed_error(error):
    def before_step(step):
        raise error

    async with scripted_engine(babble, before_step=before_step) as engine:
        with anyio.fail_after(60), pytest.raises(EngineFailed):
            await engine.generate("hi", ENDLESS)


async def test_a_dying_scheduler_or_tokenizer_fails_everybody():
    class BrokenPlanner:
        def __getattr__(self, name):
            raise RuntimeError("broken planner")

    async with scripted_engine(babble, step_seconds=0.002) as engine:
        with anyio.fail_after(60), pytest.raises(EngineFailed, match="scheduler stopped"):
            async with engine.stream("a", ENDLESS) as stream:
                await anext(stream)
                engine._system._parts.scheduler._planner = BrokenPlanner()
                await stream.result()

    async with scripted_engine(babble, step_seconds=0.002) as engine:
        with anyio.fail_after(60), pytest.raises(EngineFailed, match="tokenizer stopped"):
            async with engine.stream("a", ENDLESS) as stream:
                await anext(stream)
                engine._system._parts.tokenizer.threads.put = None
                await engine.generate("b", ENDLESS)


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_failed_step_fails_its_requests_only(depth):
    seen = []

    def before_step(step):
        seen.append(step)
        if len(seen) == 4:
            raise ValueError("bad batch")

    async with scripted_engine(babble, before_step=before_step, pipeline_depth=depth) as engine:
        with pytest.raises(StepFailure, match="ValueError"):
            await engine.generate("first", ENDLESS)
        await until_idle(engine)
        whole = await engine.generate("second", SamplingParams(max_tokens=9, seed=3))
        assert whole.usage.completion_tokens == 9
    async with scripted_engine(babble) as engine:
        assert (await engine.generate("second", SamplingParams(max_tokens=9, seed=3))).text == whole.text


async def test_a_slow_or_absent_reader_slows_nobody_and_costs_bounded_memory():
    async with scripted_engine(babble, max_model_len=1500, num_pages=400) as engine:
        async with engine.stream("never read", ENDLESS) as stream:
            other = await engine.generate("reader", SamplingParams(max_tokens=1400))
            assert other.usage.completion_tokens == 1400
            log = stream._actor.log
            with anyio.fail_after(60):
                while not log.ended:
                    await asyncio.sleep(0)
            assert len(log.read_from(0)[0]) < 200
            result = await stream.result()
        assert result.usage.completion_tokens == 1500 - 11
        await until_idle(engine)


async def test_64_requests_with_one_system_prompt_compute_it_once():
    system = "You are a helpful assistant. " * 20  # 580 characters
    computed = []

    def before_step(step):
        computed.extend(chunk.num_tokens for chunk in step.chunks)

    async with scripted_engine(
        babble, num_pages=2000, max_num_seqs=64, max_num_batched_tokens=512, before_step=before_step
    ) as engine:
        prompts = [f"{system}{number:02}" for number in range(64)]
        sampling = SamplingParams(max_tokens=1, seed=5)
        answers = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))
    shared = (len(system) + 1) // 16 * 16
    assert sum(computed) == shared + 64 * (1 + len(prompts[0]) - shared)
    assert sum(answer.usage.cached_tokens == shared for answer in answers) >= 60


@pytest.mark.parametrize("depth", [1, 2])
async def test_pipeline_depth_and_preemption_do_not_change_any_answer(depth):
    def sampling(number):
        return SamplingParams(max_tokens=80, seed=number, stop=["zq", "aa"], n=1 + number % 2)

    async with scripted_engine(babble, num_pages=1000) as engine:
        alone = [await engine.generate(f"prompt {number}", sampling(number)) for number in range(12)]
    async with scripted_engine(
        babble, num_pages=24, max_num_seqs=8, max_num_batched_tokens=32, pipeline_depth=depth
    ) as engine:
        crowd = await asyncio.gather(*(engine.generate(f"prompt {number}", sampling(number)) for number in range(12)))
        assert engine.statistics().num_preemptions > 0
        await until_idle(engine)
    for one, other in zip(alone, crowd, strict=True):
        assert [output.text for output in one.outputs] == [output.text for output in other.outputs]
        assert one.usage.completion_tokens == other.usage.completion_tokens


async def test_a_final_message_is_continued_without_a_new_turn():
    messages = [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "po"}]
    async with scripted_engine(echo) as engine:
        continued = await engine.chat(messages, continue_final_message=True)
        closed = await engine.chat(messages)
        bare = await engine.chat(messages, add_generation_prompt=False)
    assert continued.prompt == "user: ping\nassistant: po"
    assert closed.prompt == "user: ping\nassistant: po\nassistant:"
    assert bare.prompt == "user: ping\nassistant: po\n"


async def test_guessed_tokens_are_counted_in_usage_and_statistics_and_change_no_text() -> None:
    answers = []
    for most in (0, 4):
        async with scripted_engine("abcabcabcabcabc. done", num_speculative_tokens=most, prompt_lookup_min=1) as engine:
            answers.append(await engine.generate("abc", SamplingParams(max_tokens=40)))
            statistics = engine.statistics()
    plain, guessed = answers
    assert guessed.outputs == plain.outputs
    assert (plain.usage.accepted_prediction_tokens, plain.usage.rejected_prediction_tokens) == (0, 0)
    assert guessed.usage.accepted_prediction_tokens == statistics.num_accepted_tokens > 8
    assert guessed.usage.rejected_prediction_tokens == statistics.num_draft_tokens - statistics.num_accepted_tokens
    assert statistics.num_steps < guessed.usage.completion_tokens


async def test_guesses_behind_a_stop_string_are_not_counted_as_accepted() -> None:
    async with scripted_engine("abcabcabcabcabcabcd", num_speculative_tokens=8, prompt_lookup_min=1) as engine:
        plain = await engine.generate("x", SamplingParams(max_tokens=40, stop="bcab"))
        prompt = "abcabcabcabcabc"
        guessed = await engine.generate(prompt, SamplingParams(max_tokens=40, stop="cab"))
    for generation in (plain, guessed):
        usage = generation.usage
        assert generation.outputs[0].stop_reason is not None
        assert usage.accepted_prediction_tokens <= usage.completion_tokens
    assert guessed.usage.accepted_prediction_tokens > 0
    assert guessed.usage.rejected_prediction_tokens > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1; it must be from 0 to 32"),
        ({"num_speculative_tokens": 33}, "num_speculative_tokens is 33"),
        ({"prompt_lookup_max": 0}, "prompt_lookup_max is 0; it must be from 1 to 16"),
        ({"prompt_lookup_max": 2, "prompt_lookup_min": 3}, "prompt_lookup_min is 3, above prompt_lookup_max"),
    ],
)
def test_impossible_settings_of_guessing_are_refused(options: EngineOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)
