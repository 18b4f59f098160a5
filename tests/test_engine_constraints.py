"""Bounded outputs through the whole engine, over a model that babbles: valid at any depth, no trouble for others."""

import asyncio
import json
import random
import threading

import anyio
import jsonschema_rs
import pytest

from limelight.errors import InvalidRequest, LimelightError, StepFailure
from limelight.generation import FinishReason, GenerationRequest, ReasoningFormat, SamplingParams, TextPrompt
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.constraints.constraint import Constraint
from limelight.structured_outputs import StructuredOutputsParams
from limelight.testing import END, VOCAB_SIZE, scripted_engine

pytestmark = pytest.mark.anyio


def noise(turn):
    """Any token, by seed, position and the token before: a mix-up of pages or seats changes it."""
    last = (turn.output or turn.prompt)[-1]
    return random.Random(f"{turn.sampling.seed} {turn.position} {last}").choice(LIKELY)


LIKELY = [*range(VOCAB_SIZE), *b'"{}[],:' * 10, *b"0123456789abtrue" * 5, END]


def form(**params):
    return StructuredOutputsParams(**params)


def record(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
WORD = {"type": "string", "pattern": "^[a-z]{1,6}$"}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["red", "green", 3, None, [1]]},
    {"const": {"a": [1, "b"]}},
    SMALL,
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5},
    {"type": "number", "minimum": 0.5, "maximum": 1.5},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    {"type": "string", "minLength": 2, "maxLength": 5},
    WORD,
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": ["boolean", "null"]},
    {"anyOf": [WORD, SMALL]},
    {"oneOf": [{"const": 1}, {"const": "one"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]},
    {"type": "array", "items": SMALL, "maxItems": 3},
    {"type": "array", "items": WORD, "minItems": 2, "maxItems": 2},
    {"type": "array", "prefixItems": [SMALL, WORD], "items": False, "minItems": 2},
    record(a=SMALL),
    record(a=SMALL, b=WORD, c={"type": "boolean"}),
    record(outer=record(inner=record(deep=SMALL))),
    {"type": "object", "properties": {"a": SMALL, "b": WORD}, "additionalProperties": False},
    {"type": "object", "properties": {"é ü": SMALL}, "required": ["é ü"], "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x[0-9]$": SMALL}, "additionalProperties": False, "maxProperties": 2},
    {"$defs": {"n": SMALL}, "type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2},
    {
        "$defs": {"tree": {"anyOf": [{"type": "null"}, record(left={"type": "null"}, value=SMALL)]}},
        "$ref": "#/$defs/tree",
    },
    record(kind={"const": "move"}, by={"type": "array", "items": SMALL, "minItems": 2, "maxItems": 2}),
    {"anyOf": [record(kind={"const": "a"}, x=SMALL), record(kind={"const": "b"}, y=WORD)]},
]

COMPACT = form(json=SCHEMAS[21], disable_any_whitespace=True)


def sampling(seed=0, **params):
    return SamplingParams(**{"seed": seed, "max_tokens": 400, **params})


@pytest.mark.parametrize("depth", [1, 2])
async def test_outputs_of_thirty_schemas_fit_them(depth):
    async with scripted_engine(noise, pipeline_depth=depth, max_num_seqs=32) as engine:
        calls = [
            engine.generate(
                "go", sampling(seed, structured_outputs=form(json=schema, disable_any_whitespace=seed == 1))
            )
            for schema in SCHEMAS
            for seed in range(3)
        ]
        generations = await asyncio.gather(*calls)
    ended = 0
    for number, generation in enumerate(generations):
        output = generation.outputs[0]
        if output.finish_reason is FinishReason.STOP:
            ended += 1
            validator = jsonschema_rs.validator_for(SCHEMAS[number // 3])
            assert validator.is_valid(json.loads(output.text)), (SCHEMAS[number // 3], output.text)
        else:
            assert len(output.token_ids) == 400
    assert ended > 80


def mixed_cases():
    chance = random.Random(1)
    forms = [None, COMPACT, form(regex="([a-z]{2} )*"), form(json_object=True), form(choice=["yes", "no"])]
    return [
        sampling(
            number,
            n=chance.choice((1, 1, 2)),
            max_tokens=chance.choice((1, 60, 60)),
            structured_outputs=chance.choice(forms),
            bad_words=chance.choice((None, None, ["a", "true"])),
            stop=chance.choice((None, None, ["ab", "1"])),
            min_tokens=chance.choice((0, 1)),
            presence_penalty=chance.choice((0.0, 1.0)),
            logprobs=chance.choice((None, 2)),
        )
        for number in range(40)
    ]


async def outcomes(depth, *, num_pages, cancelled=()):
    """What each case gives; those of `cancelled` are left in the middle."""

    async def one(engine, number, params):
        if number not in cancelled:
            return (await engine.generate("prompt " * 4 + str(number), params)).outputs
        async with engine.stream("prompt " * 4 + str(number), params) as stream:
            async for _ in stream:
                break
        return None

    cases = mixed_cases()
    num_choices = sum(case.n for case in cases)
    everybody_is_there = threading.Event()

    async def wait_for_everybody(engine):
        while engine.statistics().num_running + engine.statistics().num_waiting < num_choices:
            await anyio.sleep(0.001)  # a loop that spins keeps the interpreter from those who compile
        everybody_is_there.set()

    async with scripted_engine(
        noise,
        pipeline_depth=depth,
        num_pages=num_pages,
        page_size=8,
        max_num_seqs=16,
        max_model_len=96,
        before_step=lambda step: everybody_is_there.wait(60),
    ) as engine:
        *found, _ = await asyncio.gather(*(one(engine, *case) for case in enumerate(cases)), wait_for_everybody(engine))
        statistics = engine.statistics()
        assert statistics.num_free_seats == statistics.num_seats
        assert statistics.num_free_pages == statistics.num_pages
    return found, statistics.num_preemptions


async def test_depth_and_preemption_and_cancelled_neighbours_change_no_token():
    alone, _ = await outcomes(1, num_pages=2000)
    for depth in (1, 2):
        squeezed, num_preemptions = await outcomes(depth, num_pages=18, cancelled=range(0, 40, 3))
        assert num_preemptions > 0
        for number, (expected, found) in enumerate(zip(alone, squeezed, strict=True)):
            assert found is None or found == expected, number


async def test_choices_follow_the_form_each_for_itself():
    async with scripted_engine(noise) as engine:
        generation = await engine.generate("go", sampling(n=6, structured_outputs=COMPACT))
    texts = [output.text for output in generation.outputs]
    assert len(set(texts)) > 1
    for text in texts:
        jsonschema_rs.validate(SCHEMAS[21], json.loads(text))


async def test_log_probabilities_come_with_masked_tokens():
    async with scripted_engine(noise) as engine:
        generation = await engine.generate("go", sampling(structured_outputs=form(choice=["yes", "no"]), logprobs=1))
    output = generation.outputs[0]
    assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)


async def test_the_form_ends_the_choice_even_before_the_least_number_of_tokens():
    async with scripted_engine("always the same") as engine:
        params = sampling(structured_outputs=form(choice=["once"]), min_tokens=30)
        output = (await engine.generate("go", params)).outputs[0]
    assert (output.text, output.finish_reason) == ("once", FinishReason.STOP)


async def test_max_tokens_cut_a_form():
    async with scripted_engine(noise) as engine:
        output = (
            await engine.generate("go", sampling(structured_outputs=form(regex="[ab]{9}"), max_tokens=4))
        ).outputs[0]
    assert output.finish_reason is FinishReason.LENGTH
    assert set(output.text) <= {"a", "b"}


@pytest.mark.parametrize("prompt", ["think: <think>", "think:"])
async def test_a_reasoning_comes_apart_from_the_form_and_within_its_budget(prompt):
    request = GenerationRequest(
        request_id="1",
        prompt=TextPrompt(prompt),
        sampling=sampling(structured_outputs=form(choice=["yes", "no"]), thinking_token_budget=12),
        reasoning=ReasoningFormat("<think>", "</think>"),
    )
    script = "<think>hm, let me think for ever about that" if prompt.endswith(":") else noise
    async with scripted_engine(script) as engine, engine.open(request) as stream:
        output = (await stream.result()).outputs[0]
    assert output.text in ("yes", "no")
    assert 0 < len(output.reasoning) <= 12


async def test_a_prompt_of_token_ids_may_have_opened_the_reasoning():
    request = GenerationRequest(
        request_id="1",
        prompt=TextPrompt("<think>"),
        sampling=sampling(structured_outputs=form(choice=["yes"]), thinking_token_budget=0),
        reasoning=ReasoningFormat("<think>", "</think>"),
    )
    async with scripted_engine(noise) as engine, engine.open(request) as stream:
        output = (await stream.result()).outputs[0]
    assert (output.reasoning, output.text) == ("", "yes")


REFUSED = [
    ({"structured_outputs": form(json={"not": {}})}, "structured_outputs"),
    ({"structured_outputs": form(regex="(")}, "structured_outputs"),
    ({"thinking_token_budget": 3}, "thinking_token_budget"),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"),
]


@pytest.mark.parametrize(("params", "field"), REFUSED)
async def test_refusals_name_the_field(params, field):
    async with scripted_engine(noise) as engine:
        with pytest.raises(InvalidRequest) as refused:
            await engine.generate("go", sampling(**params))
        assert refused.value.param == field
        assert (await engine.generate("go", sampling(max_tokens=3))).usage.completion_tokens <= 3


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_constraint_that_breaks_in_the_middle_fails_its_own_request_only(depth, monkeypatch):
    make = Constraint.mask

    def broken(constraint):
        if constraint._constraints.min_tokens == 7 and constraint._num_tokens == 3:
            raise ZeroDivisionError
        return make(constraint)

    monkeypatch.setattr(Constraint, "mask", broken)
    async with scripted_engine(noise, pipeline_depth=depth) as engine:
        bad = sampling(bad_words=["x"], min_tokens=7, n=3)
        good = [sampling(seed, structured_outputs=COMPACT) for seed in range(8)]
        results = await asyncio.gather(
            *(engine.generate("go", params) for params in (*good, bad, *good)), return_exceptions=True
        )
        assert engine.statistics().num_free_seats == engine.statistics().num_seats
    assert isinstance(results.pop(8), LimelightError)
    for result in results:
        jsonschema_rs.validate(SCHEMAS[21], json.loads(result.text))


@pytest.mark.parametrize("depth", [1, 2])
async def test_failed_steps_take_their_own_requests_only(depth):
    chance = random.Random(depth)

    def fail_some(step):
        if chance.random() < 0.01:
            raise ValueError("failed")

    async with scripted_engine(noise, pipeline_depth=depth, before_step=fail_some, max_num_seqs=4) as engine:
        calls = [engine.generate("go", sampling(seed, structured_outputs=COMPACT)) for seed in range(60)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert engine.statistics().num_free_pages == engine.statistics().num_pages
    failed = [result for result in results if isinstance(result, StepFailure)]
    assert 0 < len(failed) < 60
    for result in results:
        if result not in failed:
            jsonschema_rs.validate(SCHEMAS[21], json.loads(result.text))


async def test_nothing_is_compiled_or_masked_on_the_loop(monkeypatch):
    threads = set()

    def watched(function):
        def call(*arguments):
            threads.add(threading.get_ident())
            return function(*arguments)

        return call

    monkeypatch.setattr(ConstraintCompiler, "compile", watched(ConstraintCompiler.compile))
    monkeypatch.setattr(Constraint, "mask", watched(Constraint.mask))
    async with scripted_engine(noise) as engine:
        await engine.generate("go", sampling(structured_outputs=form(choice=["yes"])))
    assert threads
    assert threading.get_ident() not in threads


async def test_drafts_are_not_made_for_bounded_outputs():
    async with scripted_engine("ab" * 50, num_speculative_tokens=3) as engine:
        await engine.generate("ab" * 20, sampling(bad_words=["zz"], max_tokens=50))
        assert engine.statistics().num_draft_tokens == 0
