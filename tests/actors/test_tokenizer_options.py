"""What a request may ask of the tokenizer beside token ids: cut prompts, offsets, special tokens, its own template."""

import anyio
import pytest

from limelight.errors import EngineNotRunning, InvalidRequest
from limelight.generation import ChatPrompt, GenerationRequest, SamplingParams, TextPrompt, TokensPrompt, Truncation
from limelight.models.text.chat_format import MAX_TEMPLATE_CHARACTERS
from limelight.testing import BEGIN, scripted_engine

pytestmark = pytest.mark.anyio


async def prompt_of(engine, prompt, **options):
    sampling = SamplingParams(max_tokens=options.pop("max_tokens", 4))
    request = GenerationRequest(request_id="r", prompt=prompt, sampling=sampling, **options)
    async with engine.open(request) as stream:
        return await stream.result()


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        (Truncation(max_tokens=3), "hij"),
        (Truncation(max_tokens=3, side="right"), "abc"),
        (Truncation(max_tokens=100), "abcdefghij"),
        (Truncation(), "efghij"),
    ],
)
async def test_a_truncation_keeps_the_part_that_was_asked_for(truncation, kept):
    async with scripted_engine(max_model_len=10) as engine:
        for prompt in (TextPrompt("abcdefghij", False), TokensPrompt(tuple(b"abcdefghij"))):
            if len(kept) < 10:
                generation = await prompt_of(engine, prompt, truncation=truncation)
                assert bytes(generation.prompt_token_ids).decode() == kept
                assert generation.usage.prompt_tokens == len(kept)
            else:
                with pytest.raises(InvalidRequest, match="context length"):
                    await prompt_of(engine, prompt, truncation=truncation)


async def test_a_text_of_any_length_can_be_cut():
    async with scripted_engine(max_model_len=10) as engine:
        generation = await prompt_of(engine, TextPrompt("x" * 100_000 + "end", False), truncation=Truncation())
        assert bytes(generation.prompt_token_ids) == b"xxxend"


async def test_offsets_are_cut_with_the_tokens():
    async with scripted_engine() as engine:
        whole = await prompt_of(engine, TextPrompt("añb"), return_token_offsets=True)
        assert whole.prompt_token_offsets == ((0, 0), (0, 1), (1, 2), (1, 2), (2, 3))
        cut = await prompt_of(engine, TextPrompt("añb"), return_token_offsets=True, truncation=Truncation(max_tokens=2))
        assert cut.prompt_token_offsets == ((1, 2), (2, 3))
        assert (await prompt_of(engine, TextPrompt("añb"))).prompt_token_offsets is None
        assert (await prompt_of(engine, TokensPrompt((97,)), return_token_offsets=True)).prompt_token_offsets is None


async def test_a_chat_gets_special_tokens_only_when_it_asks_for_them():
    messages = ({"role": "user", "content": "x"},)
    async with scripted_engine() as engine:
        plain = await engine.tokenize(ChatPrompt(messages=messages))
        assert await engine.tokenize(ChatPrompt(messages=messages, add_special_tokens=True)) == (BEGIN, *plain)


async def test_a_template_of_the_request_is_used_or_refused_by_name():
    messages = ({"role": "user", "content": "x"},)
    async with scripted_engine() as engine:

        async def rendered(template):
            token_ids = await engine.tokenize(ChatPrompt(messages=messages, template=template))
            return await engine.detokenize(token_ids)

        assert await rendered("<{{ messages[0].content }}>") == "<x>"
        for template in ("{% if %}", "{{ raise_exception('no') }}", "{{ ''.__class__.x() }}", "x" * 70_000):
            with pytest.raises(InvalidRequest) as refusal:
                await rendered(template)
            assert refusal.value.param == "chat_template", template
        assert MAX_TEMPLATE_CHARACTERS < 70_000


async def test_tokens_and_texts_go_both_ways_and_foreign_ids_are_refused():
    async with scripted_engine() as engine:
        assert await engine.tokenize(TextPrompt("aé", add_special_tokens=False)) == tuple("aé".encode())
        assert await engine.detokenize([BEGIN, 97, 256]) == "<|begin|>a<|end|>"
        assert await engine.tokenize(TextPrompt("", add_special_tokens=False)) == ()
        with pytest.raises(InvalidRequest, match="0 to 257"):
            await engine.detokenize([258])


async def test_a_question_that_an_ending_engine_drops_is_answered():
    engine = scripted_engine()
    await engine.start()
    failures = []

    async def ask():
        try:
            await engine.tokenize(TextPrompt("x" * 1_000_000))
        except EngineNotRunning as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        await engine.stop()
    assert failures
