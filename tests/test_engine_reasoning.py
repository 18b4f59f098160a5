"""Reasoning through the whole engine: apart from the text, counted, and begun by the prompt where it is."""

import pytest

from limelight.generation import GenerationRequest, ReasoningFormat, SamplingParams, TextPrompt, TokensPrompt
from limelight.testing import scripted_engine

THINK = ReasoningFormat("<think>", "</think>")


def request(prompt, **fields):
    sampling = SamplingParams(max_tokens=None, seed=1, n=2)
    return GenerationRequest(request_id="r", prompt=prompt, sampling=sampling, reasoning=THINK, **fields)


@pytest.mark.anyio
@pytest.mark.parametrize("prompt", [TextPrompt("hi <think>\n"), TokensPrompt(tuple(b"hi <think>\n"))])
async def test_a_prompt_that_opens_the_reasoning(prompt):
    async with scripted_engine("ab</think>cd") as engine, engine.open(request(prompt)) as stream:
        deltas = [delta async for delta in stream]
        whole = await stream.result()
    for index in (0, 1):
        assert "".join(delta.reasoning for delta in deltas if delta.index == index) == "ab"
        assert "".join(delta.text for delta in deltas if delta.index == index) == "cd"
        assert (whole.outputs[index].reasoning, whole.outputs[index].text) == ("ab", "cd")
    assert whole.usage.reasoning_tokens == 2 * len("ab</think>")
    assert deltas[-1].usage == whole.usage


@pytest.mark.anyio
async def test_without_marks_everything_is_text():
    async with scripted_engine("<think>ab</think>cd") as engine:
        whole = await engine.generate("hi", SamplingParams(max_tokens=None))
    assert whole.text == "<think>ab</think>cd"
    assert whole.usage.reasoning_tokens == 0
