"""A recorded request has all that is needed to run it again, and running it again finds what has changed."""

import asyncio
import json
import logging
import random
import threading

import msgspec
import pytest

from limelight.engine import EngineState
from limelight.errors import (
    EngineNotRunning,
    InvalidRequest,
    OutOfMemory,
    RequestCancelled,
    StepFailure,
    UnsupportedField,
)
from limelight.generation import GenerationRequest, Pooling, SamplingParams, TextPrompt
from limelight.replay import folder as folder_module
from limelight.replay.bundle import decode, encode
from limelight.structured_outputs import StructuredOutputsParams
from limelight.testing import VOCAB_SIZE, babble, scripted_engine, scripted_model
from tests.replay.recorded import ask, bundle_of, run_again

pytestmark = pytest.mark.anyio
SCRIPTED = scripted_model(babble, num_pages=1000)


def changed_at(number):
    """Babbles, but for one token of each choice."""
    return lambda turn: ord("!") if turn.number == number else babble(turn)


async def test_a_bundle_says_what_was_drawn_and_in_which_steps(tmp_path):
    async with scripted_engine(babble, record_dir=str(tmp_path), max_num_batched_tokens=16) as engine:
        answer = await ask(engine, "one", "x" * 39, SamplingParams(max_tokens=5, n=2))
    bundle = bundle_of(tmp_path, "one")
    assert [choice.token_ids for choice in bundle.choices] == [output.token_ids for output in answer.outputs]
    assert bundle.prompt_token_ids == answer.prompt_token_ids
    assert bundle.sampling.seed is not None
    assert bundle.choices[0].seed == bundle.sampling.seed != bundle.choices[1].seed
    assert all(len(choice.logprobs) == 5 and choice.finish_reason == "length" for choice in bundle.choices)
    first = [(row.start, row.num_tokens) for step in bundle.steps for row in step.rows if row.choice == 0]
    assert first[:3] == [(0, 16), (16, 16), (32, 8)]
    assert bundle.is_whole
    assert bundle.model.name == "scripted"
    assert {"limelight", "python", "torch"} <= bundle.versions.keys()
    assert bundle.config.max_num_batched_tokens == 16


async def test_a_recorded_request_gets_the_same_answer_as_any_other(tmp_path):
    sampling = SamplingParams(max_tokens=30, seed=4, stop="zq")
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        recorded = await ask(engine, "one", "hello", sampling)
        plain = await engine.generate("hello", sampling)
    assert recorded.outputs == plain.outputs
    assert recorded.outputs[0].logprobs is None


@pytest.mark.parametrize("with_neighbours", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
async def test_under_load_and_preempted_it_is_the_same_again(tmp_path, depth, with_neighbours):
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "pipeline_depth": depth}
    async with scripted_engine(babble, num_pages=24, record_dir=str(tmp_path), **options) as engine:
        await asyncio.gather(
            *(
                ask(
                    engine, f"r{number}", f"prompt {number}", SamplingParams(max_tokens=80, n=1 + number % 2, stop="zq")
                )
                for number in range(12)
            )
        )
        assert engine.statistics().num_preemptions > 0
    bundles = [bundle_of(tmp_path, f"r{number}") for number in range(12)]
    assert any(event.kind == "unseated" for bundle in bundles for event in bundle.events)
    for bundle in bundles:
        verdict = run_again(bundle, SCRIPTED, with_neighbours=with_neighbours)
        assert verdict.same, verdict.first_difference
        assert verdict.num_compared == verdict.num_recorded > 0
        assert verdict.largest_logprob_change == 0.0
        assert len(bundle.neighbours) > 1


async def test_neighbours_are_told_by_id_and_length_alone(tmp_path):
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        await asyncio.gather(
            ask(engine, "mine", "my own", SamplingParams(max_tokens=20)),
            engine.generate("secret of another", SamplingParams(max_tokens=20), request_id="theirs"),
        )
    content = (tmp_path / "mine.replay.json").read_bytes()
    bundle = decode(content)
    assert bundle.neighbours == ("theirs",)
    assert b"secret" not in content
    assert json.dumps(list(b"secret"))[1:-1].replace(" ", "").encode() not in content


async def test_a_prefix_from_the_cache_is_computed_before(tmp_path):
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        await engine.generate("x" * 100, SamplingParams(max_tokens=1))
        await ask(engine, "one", "x" * 100, SamplingParams(max_tokens=10))
    bundle = bundle_of(tmp_path, "one")
    assert bundle.cached_tokens == 96
    assert bundle.steps[0].rows[0].start == 96
    assert run_again(bundle, SCRIPTED).same


async def test_guessed_tokens_are_guessed_again(tmp_path):
    def period(turn):
        return 97 + turn.position % 5

    async with scripted_engine(period, record_dir=str(tmp_path), num_speculative_tokens=4) as engine:
        answer = await ask(engine, "one", "hello", SamplingParams(max_tokens=60))
    assert answer.usage.accepted_prediction_tokens > 10
    bundle = bundle_of(tmp_path, "one")
    assert run_again(bundle, scripted_model(period)).num_compared == 60
    difference = run_again(bundle, scripted_model(changed_at(40))).first_difference
    assert difference is not None


async def test_masks_are_made_again(tmp_path):
    def noise(turn):
        last = (turn.output or turn.prompt)[-1]
        return random.Random(f"{turn.sampling.seed} {turn.position} {last}").randrange(VOCAB_SIZE)

    bounds = StructuredOutputsParams(json={"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 9})
    sampling = SamplingParams(max_tokens=60, structured_outputs=bounds, bad_words=["7"], n=2)
    async with scripted_engine(noise, record_dir=str(tmp_path)) as engine:
        await ask(engine, "one", "hello", sampling)
    bundle = bundle_of(tmp_path, "one")
    assert all(row.masked for step in bundle.steps for row in step.rows if row.sample)
    assert run_again(bundle, scripted_model(noise)).same


async def test_an_adapter_is_loaded_again(tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 4, "num_bytes": 1000}))
    options = {"record_dir": str(tmp_path), "adapters": {"tuned": str(adapter)}}
    async with scripted_engine(lambda turn: 97 if turn.adapter is None else 98, **options) as engine:
        await ask(engine, "one", "hello", SamplingParams(max_tokens=5), adapter="tuned")
    bundle = bundle_of(tmp_path, "one")
    assert set(bundle.choices[0].token_ids) == {98}
    assert run_again(bundle, scripted_model(lambda turn: 97 if turn.adapter is None else 98)).same
    elsewhere = msgspec.structs.replace(bundle, config=msgspec.structs.replace(bundle.config, adapters={}))
    with pytest.raises(InvalidRequest, match="--lora"):
        run_again(elsewhere, SCRIPTED)
    assert run_again(elsewhere, scripted_model(lambda turn: 98 if turn.adapter else 97), adapter_path=str(adapter)).same


@pytest.mark.parametrize("number", [0, 7, 19])
async def test_the_first_difference_is_named(tmp_path, number):
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        await ask(engine, "one", "hello", SamplingParams(max_tokens=20))
    bundle = bundle_of(tmp_path, "one")
    verdict = run_again(bundle, scripted_model(changed_at(number)), page_size=32)
    difference = verdict.first_difference
    assert not verdict.same
    assert difference is not None
    assert (difference.position, difference.got, difference.got_text) == (number, ord("!"), "!")
    assert difference.expected == bundle.choices[0].token_ids[number]
    assert difference.expected_text == chr(difference.expected)
    assert difference.recorded_logprob == difference.got_logprob == -0.25
    assert verdict.num_compared == number + 1
    step = next(step for step in bundle.steps if step.number == difference.step)
    assert step.rows[0].start + step.rows[0].num_tokens == len(bundle.prompt_token_ids) + number
    assert [(change.what, change.recorded, change.here) for change in verdict.changes] == [
        ("config page_size", "16", "32")
    ]


async def test_another_version_is_named(tmp_path):
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        await ask(engine, "one", "hello", SamplingParams(max_tokens=2))
    bundle = bundle_of(tmp_path, "one")
    older = msgspec.structs.replace(bundle, versions=bundle.versions | {"torch": "1.0"}, machine={})
    named = {change.what: change.recorded for change in run_again(older, SCRIPTED).changes}
    assert named["version of torch"] == "1.0"
    assert named["processor"] == "none"


async def test_a_cancelled_request_leaves_what_it_had(tmp_path):
    gate = threading.Event()

    def hold(step):
        if step.number == 3:
            gate.wait(20)

    async with scripted_engine(babble, record_dir=str(tmp_path), before_step=hold) as engine:
        request = GenerationRequest(
            request_id="one", record_id="one", prompt=TextPrompt("hi"), sampling=SamplingParams(max_tokens=50)
        )
        async with engine.open(request) as running:
            await anext(running)
            engine.abort("one")
            gate.set()
            with pytest.raises(RequestCancelled):
                await running.result()
    bundle = bundle_of(tmp_path, "one")
    assert bundle.error == "request_cancelled"
    assert run_again(bundle, SCRIPTED).same
    assert 0 < len(bundle.choices[0].token_ids) < 50


async def test_a_step_that_failed_is_told(tmp_path):
    def fail(step):
        if step.number == 3:
            raise RuntimeError("broken")

    async with scripted_engine(babble, record_dir=str(tmp_path), before_step=fail) as engine:
        with pytest.raises(StepFailure):
            await ask(engine, "one", "hi", SamplingParams(max_tokens=50))
    bundle = bundle_of(tmp_path, "one")
    assert bundle.error == "step_failed"
    assert bundle.events[-1].kind == "failed"
    assert run_again(bundle, SCRIPTED).num_compared == len(bundle.choices[0].token_ids) == 3


async def test_a_full_disk_is_logged_and_harms_no_request(tmp_path, monkeypatch, caplog):
    def full(path):
        raise OSError(28, "No space left on device")

    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        monkeypatch.setattr(folder_module, "_create", full)
        with caplog.at_level(logging.ERROR):
            answer = await ask(engine, "one", "hello", SamplingParams(max_tokens=5))
            await engine.stop()
    assert len(answer.outputs[0].token_ids) == 5
    assert "request one: its replay bundle cannot be written" in caplog.text
    assert "No space left on device" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert engine.failure is None


async def test_a_slow_disk_is_waited_for_by_no_request_and_bounds_what_waits(tmp_path, monkeypatch, caplog):
    gate = threading.Event()
    create = folder_module._create
    monkeypatch.setattr(folder_module, "_create", lambda path: (gate.wait(20), create(path))[1])
    engine = scripted_engine(babble, record_dir=str(tmp_path))
    gate.set()
    await engine.start()
    gate.clear()
    for number in range(20):
        await ask(engine, f"r{number}", "hello", SamplingParams(max_tokens=2))
    assert caplog.text.count("given up") == 4
    gate.set()
    await engine.stop()
    assert len(list(tmp_path.iterdir())) == 16
    assert engine.left_behind == ()


async def test_an_engine_without_a_folder_says_so(tmp_path):
    async with scripted_engine(babble) as engine:
        with pytest.raises(UnsupportedField, match="--record-dir"):
            await ask(engine, "one", "hello", SamplingParams(max_tokens=5))
        with pytest.raises(UnsupportedField, match="--record-dir"):
            await engine.read_record("one")
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        with pytest.raises(UnsupportedField, match="embeddings"):
            await ask(engine, "one", "hello", SamplingParams(), pooling=Pooling.MEAN)
        request = GenerationRequest(
            request_id="x", record_id="../x", prompt=TextPrompt("x"), sampling=SamplingParams(max_tokens=1)
        )
        with pytest.raises(InvalidRequest, match="record_id"):
            async with engine.open(request):
                pass
        assert await engine.read_record("none") is None


async def test_a_folder_that_cannot_be_stops_the_start(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    engine = scripted_engine(babble, record_dir=str(tmp_path / "file"))
    with pytest.raises(ValueError, match="record_dir"):
        await engine.start()
    with pytest.raises(EngineNotRunning):
        _ = engine.model
    assert engine.state in (EngineState.STOPPED, EngineState.FAILED)


async def test_only_the_first_rows_of_a_long_request_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("limelight.actors.recorder.MAX_ROWS", 10)
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        await ask(engine, "one", "hello", SamplingParams(max_tokens=20))
    bundle = bundle_of(tmp_path, "one")
    assert not bundle.is_whole
    assert len(bundle.steps) == 10
    assert len(bundle.choices[0].token_ids) == 20
    verdict = run_again(bundle, SCRIPTED)
    assert verdict.same
    assert (verdict.num_compared, verdict.num_recorded) == (10, 20)


async def test_a_replay_that_does_not_fit_says_so(tmp_path):
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        await ask(engine, "one", "x" * 100, SamplingParams(max_tokens=20, n=3))
    bundle = bundle_of(tmp_path, "one")
    with pytest.raises(OutOfMemory, match="--kv-cache-memory"):
        run_again(bundle, scripted_model(babble, num_pages=10))
    with pytest.raises(OutOfMemory, match="--max-num-seqs"):
        run_again(bundle, SCRIPTED, max_num_seqs=2)


async def test_what_is_no_bundle_is_refused(tmp_path):
    async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
        await ask(engine, "one", "hello", SamplingParams(max_tokens=5, logit_bias={5: 1.0}))
    content = (tmp_path / "one.replay.json").read_bytes()
    bundle = decode(content)
    assert encode(bundle) == content
    whole = json.loads(content)
    damaged = [b"", b"[]", b"{}", b"\xff", content[:-5], b"[" * 100_000]
    damaged += [
        json.dumps(whole | changes).encode()
        for changes in (
            {"version": 2},
            {"format": "other"},
            {"prompt_token_ids": [10**9]},
            {"steps": [[1, [[0, 9, 0, 1, True]]]]},
            {"steps": [[1, [[3, 0, 0, 1, True]]]]},
            {"steps": [[2, []], [1, []]]},
            {"sampling": {"n": 0}},
            {"config": {"page_size": 7}},
        )
    ]
    for text in damaged:
        with pytest.raises(InvalidRequest, match=r"replay bundle|n is 0"):
            decode(text)
    with pytest.raises(InvalidRequest, match="another model"):
        run_again(
            msgspec.structs.replace(bundle, capacity=msgspec.structs.replace(bundle.capacity, vocab_size=999)), SCRIPTED
        )
