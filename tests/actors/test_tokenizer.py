"""A text far beyond the context is refused at the price of a part of it; every other one is encoded whole."""

import msgspec
import pytest

from limelight.engine import Engine
from limelight.errors import ContextLengthExceeded, InvalidRequest
from limelight.generation import SamplingParams
from limelight.testing import ByteVocabulary, scripted_model

pytestmark = pytest.mark.anyio

CONTEXT = 64
IMAGE = 100_000


class CountingVocabulary(ByteVocabulary):
    """Remembers how much it was asked to encode. A run of blanks is one token."""

    def __init__(self):
        self.num_characters = 0

    def encode(self, text, *, add_special_tokens):
        self.num_characters += len(text)
        return super().encode(" ".join(text.split(" " * 64)), add_special_tokens=add_special_tokens)


@pytest.fixture
def vocabulary():
    return CountingVocabulary()


@pytest.fixture
def engine(vocabulary):
    def load(config, report):
        return msgspec.structs.replace(scripted_model("yes")(config, report), vocabulary=vocabulary)

    return Engine("scripted", loader=load, max_model_len=CONTEXT)


async def test_megabytes_are_refused_after_a_small_part(engine, vocabulary):
    async with engine:
        with pytest.raises(ContextLengthExceeded, match=f"context length is {CONTEXT}") as refusal:
            await engine.generate("a" * 10_000_000)
        assert refusal.value.param == "prompt"
        with pytest.raises(ContextLengthExceeded) as refusal:
            await engine.chat([{"role": "user", "content": "a" * 10_000_000}])
        assert refusal.value.param == "messages"
    assert vocabulary.num_characters < 100 * CONTEXT


async def test_a_long_text_of_few_tokens_is_served(engine):
    async with engine:
        generation = await engine.generate(" " * 64 * 50 + "a", SamplingParams(max_tokens=3))
    assert generation.text == "yes"
    assert generation.usage.prompt_tokens <= CONTEXT


async def test_a_long_text_whose_end_has_the_tokens_is_refused_too(engine):
    async with engine:
        with pytest.raises(ContextLengthExceeded):
            await engine.generate(" " * 64 * 50 + "a" * 1000)


async def test_a_text_of_one_token_too_many_is_told_its_exact_length(engine):
    async with engine:
        with pytest.raises(ContextLengthExceeded, match=f"has {CONTEXT} tokens"):
            await engine.generate("a" * (CONTEXT - 1))


class WiderVocabulary(ByteVocabulary):
    """A tokenizer with a token that the model has no embedding for."""

    def encode(self, text, *, add_special_tokens):
        before, image, after = text.partition("<image>")
        encoded = super().encode(before, add_special_tokens=add_special_tokens)
        return [*encoded, *([IMAGE] if image else []), *super().encode(after, add_special_tokens=False)]

    def token_bytes(self, token_id):
        return b"<image>" if token_id == IMAGE else super().token_bytes(token_id)


async def test_a_token_beyond_the_embedding_is_refused_and_fails_nobody_else():
    def load(config, report):
        return msgspec.structs.replace(scripted_model("yes")(config, report), vocabulary=WiderVocabulary())

    async with Engine("scripted", loader=load, max_model_len=CONTEXT) as engine:
        with pytest.raises(
            InvalidRequest, match=f"the token '<image>' .{IMAGE}., which the tokenizer knows"
        ) as refusal:
            await engine.generate("see <image>")
        assert refusal.value.param == "prompt"
        with pytest.raises(InvalidRequest, match="leave it out") as refusal:
            await engine.chat([{"role": "user", "content": "see <image>"}])
        assert refusal.value.param == "messages"
        assert (await engine.generate("see", SamplingParams(max_tokens=3))).text == "yes"
