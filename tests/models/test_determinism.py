"""What `deterministic` promises: a request gets the same tokens, and log-probabilities equal in every bit, whatever
runs beside it and however the scheduler cuts it.
"""

from typing import Any

import anyio
import pytest

from limelight.engine import Engine
from limelight.errors import ConfigError
from limelight.generation import SamplingParams
from tests.models.families.tiny_families import TINY_FAMILIES
from tests.models.tiny_models import c_kernels, save_byte_tokenizer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
VOCAB_SIZE = 258
PAGE_BYTES = {"llama": 2 * 2 * 8 * 2 * 8 * 2, "gemma2": 2 * 2 * 8 * 2 * 12 * 2, "gpt_oss": 2 * 2 * 8 * 2 * 16 * 2}
"""Of 8 tokens in two layers of two heads, bfloat16."""
WAYS: dict[str, dict[str, Any]] = {
    "in a batch": {},
    "prompts in chunks": {"max_num_batched_tokens": 17},
    "short chunks and few seats": {"max_num_batched_tokens": 5, "max_num_seqs": 3},
    "preempted": {"num_pages": 40},
    "two steps in flight": {"pipeline_depth": 2, "num_pages": 60},
    "with guesses": {"num_speculative_tokens": 4},
    "three threads": {"num_threads": 3},
    "larger pages": {"page_size": 32, "num_pages": 256},
}
Answers = list[tuple[tuple[int, ...], list[float]]]


@pytest.fixture(scope="module", params=PAGE_BYTES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """Folder of a tiny random model, whose logits lie close together, and the bytes of a page."""
    c_kernels()  # or the tests are skipped
    folder = tmp_path_factory.mktemp(request.param)
    TINY_FAMILIES[request.param](vocab_size=VOCAB_SIZE, eos_token_id=256).save_pretrained(folder)
    save_byte_tokenizer(folder)
    return str(folder), PAGE_BYTES[request.param]


def asks() -> list[tuple[list[int], SamplingParams]]:
    """Sixteen prompts, of which one repeats itself, half of them greedy."""
    found = []
    for number in range(16):
        length = 2 + 6 * number
        if number == 15:
            prompt = [index % 6 for index in range(length)]
        else:
            prompt = [(number * 31 + index * (index % 7 + number)) % 250 for index in range(length)]
        sampling = SamplingParams(
            temperature=0 if number % 2 else 1.0,
            top_p=0.9 if number % 4 == 2 else 1.0,
            seed=number,
            max_tokens=24,
            ignore_eos=True,
            logprobs=0,
        )
        found.append((prompt, sampling))
    return found


def engine_of(model: tuple[str, int], num_pages: int = 512, page_size: int = 8, **options: Any) -> Engine:
    folder, page_bytes = model
    settings: dict[str, Any] = {"max_num_seqs": 16, "num_threads": 1, **options}
    size = num_pages * page_bytes * page_size // 8
    return Engine(folder, device="cpu", deterministic=True, kv_cache_bytes=size, page_size=page_size, **settings)


async def answers(engine: Engine, *, together: bool) -> Answers:
    """Tokens and their log-probabilities, in the order of `asks`."""
    found: dict[int, Any] = {}

    async def ask(number: int, prompt: list[int], sampling: SamplingParams) -> None:
        [output] = (await engine.generate(prompt, sampling)).outputs
        assert output.logprobs is not None
        found[number] = (output.token_ids, [entry.logprob for entry in output.logprobs])

    async with anyio.create_task_group() as tasks:
        for number, (prompt, sampling) in enumerate(asks()):
            if together:
                tasks.start_soon(ask, number, prompt, sampling)
            else:
                await ask(number, prompt, sampling)
    return [found[number] for number in range(len(found))]


async def test_tokens_do_not_depend_on_what_else_runs(model: tuple[str, int]) -> None:
    async with engine_of(model, enable_prefix_caching=False) as engine:
        alone = await answers(engine, together=False)
    assert len({tokens for tokens, _ in alone}) == len(alone)
    for way, options in WAYS.items():
        async with engine_of(model, **options) as engine:
            assert await answers(engine, together=True) == alone, way
            cached = engine.statistics().prefix_hits_tokens
            assert await answers(engine, together=True) == alone, f"{way}, once more"
            statistics = engine.statistics()
        if way in ("preempted", "two steps in flight"):
            assert statistics.num_preemptions > 0
        if way == "with guesses":
            assert statistics.num_draft_tokens > 0
        if way == "in a batch":
            assert statistics.prefix_hits_tokens > cached


async def test_what_cannot_keep_the_promise_does_not_start(model: tuple[str, int]) -> None:
    for options in ({"cpu_kernels": "reference"}, {"model_impl": "transformers"}):
        with pytest.raises(ConfigError, match="deterministic needs the kernels in C"):
            async with engine_of(model, num_threads=None, **options):
                pytest.fail("it started")
