"""What has gone wrong elsewhere with outputs of a given form, tried on the default model.

Cases: B054 (with the tests of hostile constraints), B055, B056, B057, B058, B059, B060.
"""

import json
import re

import anyio
import pytest

from limelight.generation import FinishReason, SamplingParams
from limelight.structured_outputs import StructuredOutputsParams
from tests.cases.small_engines import (
    completion,
    default_engine,
    idle,
    model_client,
    one_by_one,
    together,
    until,
)
from tests.http.wire import COMPLETIONS, error_of, streamed

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.usefixtures("default_model")]

QUOTING = 'As JSON, a text with a "quotation", a tab and a new line in it: '
TEXT = {
    "type": "object",
    "properties": {"t": {"type": "string", "maxLength": 40}},
    "required": ["t"],
    "additionalProperties": False,
}
LONGEST_BLANK = 8


def formed(seed=0, temperature=1.0, max_tokens=150, *, min_tokens=0, **form):
    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        structured_outputs=StructuredOutputsParams(**form),
    )


@pytest.mark.parametrize(
    "form",
    [{"regex": "("}, {"regex": "[z-a]"}, {"regex": r"\p{Foo}"}, {"grammar": "no grammar"}, {"json": {"type": "wish"}}],
    ids=str,
)
async def test_a_form_that_cannot_be_costs_its_own_request_only(form):
    async with default_engine() as engine, model_client(engine) as client:
        other = {}

        async def stream():
            other["answer"] = await client.post(COMPLETIONS, json=completion(stream=True, max_tokens=30))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream)
            await until(lambda: engine.statistics().num_running)
            refused = await client.post(COMPLETIONS, json=completion(structured_outputs=form))
        assert error_of(refused, 400)["param"].startswith("structured_outputs")
        assert streamed(other["answer"])
        assert (await client.get("/health")).status_code == 200
        assert (await client.post(COMPLETIONS, json=completion(max_tokens=1))).status_code == 200
        await until(lambda: idle(engine))


async def test_a_bounded_text_can_escape_and_never_breaks_its_json():
    asks = [(QUOTING, formed(seed, json=TEXT)) for seed in range(16)]
    async with default_engine(num_pages=256) as engine:
        answers = [generation.text for generation in await together(engine, asks)]
    assert all(len(json.loads(answer)["t"]) <= 40 for answer in answers)
    assert any("\\" in answer for answer in answers)


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "string", "maxLength": 3, "pattern": "^[a-z😀]*$"}, "[a-z😀]{0,3}"),
        ({"type": "string", "maxLength": 1, "enum": ["😀"]}, "😀"),
        ({"const": "😀"}, "😀"),
        ({"type": "string", "minLength": 2, "maxLength": 2}, "(?s)..?.?"),
    ],
    ids=str,
)
async def test_lengths_count_the_characters_of_the_text(schema, wanted):
    asks = [("A smiling face as JSON: ", formed(seed, 1.5, json=schema)) for seed in range(8)]
    async with default_engine() as engine:
        answers = [json.loads(generation.text) for generation in await together(engine, asks)]
    for answer in answers:
        answer.encode()  # no half of a surrogate pair
        assert re.fullmatch(wanted, answer)
        assert schema.get("minLength", 0) <= len(answer) <= schema.get("maxLength", 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_blanks_between_the_parts_of_json_come_to_an_end(temperature):
    """Of a model that nobody has told of JSON; most of what it may say otherwise is blank."""
    schema = TEXT | {"properties": {"t": {"type": "boolean"}}}
    asks = [
        ("The weather today is", formed(seed, temperature, 150, **form))
        for seed in range(6)
        for form in ({"json_object": True}, {"json": schema})
    ]
    async with default_engine(num_pages=256) as engine:
        generations = await together(engine, asks)
    for generation, (_, sampling) in zip(generations, asks, strict=True):
        outside = re.sub(r'"(\\.|[^"\\])*("|$)', '""', generation.text)
        assert max((len(run) for run in re.findall(r"\s+", outside)), default=0) <= LONGEST_BLANK
        if sampling.structured_outputs.json is not None:
            assert json.loads(generation.text).keys() == {"t"}


@pytest.mark.parametrize("min_tokens", [0, 20])
async def test_nothing_follows_a_form_that_is_complete(min_tokens):
    asks = [("Is it? ", formed(seed, 1.0, 50, min_tokens=min_tokens, json={"type": "boolean"})) for seed in range(4)]
    async with default_engine() as engine:
        generations = await together(engine, asks)
    for generation in generations:
        assert generation.text in ("true", "false")
        assert generation.outputs[0].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("text", ["𓀀", "ꙮ", "a𓀀\u200d😀"])
async def test_characters_without_a_token_of_their_own_are_written_byte_by_byte(text):
    async with default_engine() as engine, model_client(engine) as client:
        body = completion(max_tokens=40, stream=True, structured_outputs={"choice": [text]})
        chunks = streamed(await client.post(COMPLETIONS, json=body))
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == text


async def test_a_form_outlives_the_loss_of_its_pages():
    schema = {"type": "array", "items": {"enum": ["𓀀", "fox", "bear"]}, "minItems": 12, "maxItems": 12}
    asks = [("Animals as JSON: ", formed(seed, 1.0, 80, json=schema, disable_any_whitespace=True)) for seed in range(4)]
    async with default_engine(enable_prefix_caching=False) as engine:
        alone = await one_by_one(engine, asks)
    async with default_engine(8, max_num_seqs=4, max_model_len=112) as engine:
        crowded = await together(engine, asks)
        assert engine.statistics().num_preemptions > 0
        assert idle(engine)
    assert [generation.text for generation in crowded] == [generation.text for generation in alone]
    assert all(len(json.loads(generation.text)) == 12 for generation in alone)
