"""The default model under forms, words and budgets: whatever it would rather say."""

import asyncio
import json
import re

import jsonschema_rs
import pytest

from limelight.generation import FinishReason, GenerationRequest, ReasoningFormat, SamplingParams, TextPrompt
from limelight.structured_outputs import StructuredOutputsParams
from tests.cases.small_engines import default_engine

pytestmark = [pytest.mark.anyio, pytest.mark.model]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "quick"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPT = "A person, written as JSON: "


def bounded(temperature=1.0, seed=0, max_tokens=160, **params):
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, **params)


def form(**params):
    return StructuredOutputsParams(**params)


async def test_a_schema_is_kept_at_any_temperature_and_in_any_company():
    sampling = [
        bounded(temperature, seed, structured_outputs=form(json=PERSON))
        for temperature, seed in ((0.0, 0), (1.0, 1), (2.0, 2), (2.0, 3))
    ]
    async with default_engine() as engine:
        together = await asyncio.gather(
            *(engine.generate(PROMPT, params) for params in sampling),
            engine.generate("Once upon a time", bounded(0.0, max_tokens=30)),
        )
        for params, generation in zip(sampling, together[:4], strict=True):
            assert generation.outputs[0].finish_reason is FinishReason.STOP
            jsonschema_rs.validate(PERSON, json.loads(generation.text))
            assert (await engine.generate(PROMPT, params)).outputs == generation.outputs
        alone = await engine.generate("Once upon a time", bounded(0.0, max_tokens=30))
        assert alone.outputs == together[4].outputs


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        ({"regex": r"\d{4}-\d{2}-\d{2}"}, r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
        ({"choice": ["yes", "no", "perhaps 😀"]}, "yes|no|perhaps 😀"),
        ({"grammar": 'root ::= "<" [a-z]+ ">"'}, "<[a-z]+>?"),
        ({"json": {"type": "integer", "minimum": 0, "maximum": 9}}, "-?[0-9]"),
    ],
)
async def test_other_forms(params, pattern):
    async with default_engine() as engine:
        generation = await engine.generate("Answer: ", bounded(max_tokens=40, structured_outputs=form(**params)))
    assert re.fullmatch(pattern, generation.text)


async def test_words_do_not_occur():
    async with default_engine() as engine:
        free = await engine.generate("The capital of France is", bounded(0.0, max_tokens=16))
        assert "Paris" in free.text
        without = await engine.generate(
            "The capital of France is", bounded(0.0, max_tokens=40, bad_words=["Paris", "the"])
        )
    assert "Paris" not in without.text
    assert "the" not in without.text


async def test_a_reasoning_ends_with_its_budget_and_the_form_follows():
    request = GenerationRequest(
        request_id="1",
        prompt=TextPrompt("Question: is water wet? <think>"),
        sampling=bounded(thinking_token_budget=10, structured_outputs=form(choice=["yes", "no"])),
        reasoning=ReasoningFormat("<think>", "</think>"),
    )
    async with default_engine() as engine, engine.open(request) as stream:
        output = (await stream.result()).outputs[0]
    assert output.text in ("yes", "no")
    assert output.reasoning
    assert len(output.token_ids) < 20


async def test_masked_tokens_have_log_probabilities():
    async with default_engine() as engine:
        params = bounded(0.0, structured_outputs=form(choice=["yes", "no"]), logprobs=2)
        output = (await engine.generate("Is water wet? ", params)).outputs[0]
    assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
    assert all(entry.logprob <= 0 for entry in output.logprobs)
