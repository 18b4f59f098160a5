"""Engines whose greedy sequences are masked: the kernels in C draw what torch draws, whoever else is in the batch."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from limelight.actors.messages import Masks
from limelight.actors.step_order import StepOrder
from limelight.engine import Engine
from limelight.models.checkpoint import Checkpoint
from limelight.models.loaded_model import LoadedModel
from limelight.models.token_masks import mask_bytes
from limelight.step import Chunk, Step, StepExecutor, StepResult, TokenMasks
from limelight.testing import END, VOCAB_SIZE, ByteVocabulary, PlainChatFormat
from tests.models.captured.rigs import capacity_of, torch_executor
from tests.models.captured.test_engine import agree, ask_all, asks
from tests.models.tiny_models import Rig, c_kernels, saved, tiny_llama

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_torch_thread")]
VOWELS = b"aeiou "
MASK = sum(1 << token_id for token_id in (*VOWELS, END)).to_bytes(mask_bytes(VOCAB_SIZE), "little")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(tiny_llama(vocab_size=VOCAB_SIZE), tmp_path_factory.mktemp("tiny"))


class GreedyMasked:
    """Lets greedy sequences draw vowels alone; their masks come early at every second step, else late."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor
        self._order = StepOrder(executor, lambda number, wait, started: self._waits.append(wait))
        self._waits: list[Callable[[], StepResult]] = []
        self._greedy: dict[int, bool] = {}
        self.num_mixed = 0

    def submit(self, step: Step) -> Callable[[], StepResult]:
        for taken in step.taken:
            self._greedy[taken.seat] = taken.sampling.temperature == 0
        chunks = tuple(self._masked(chunk) for chunk in step.chunks)
        masks = {number: MASK * (chunk.num_drafts + 1) for number, chunk in enumerate(chunks) if chunk.masked}
        self.num_mixed += 0 < len(masks) < sum(chunk.sample for chunk in chunks)
        messages: list[Any] = [msgspec.structs.replace(step, chunks=chunks)]
        if masks:
            messages.insert(step.number % 2, Masks(step.number, masks))
        for message in messages:
            self._order.submit(message) if isinstance(message, Step) else self._order.put_masks(message)
        [wait] = self._waits
        self._waits.clear()
        return wait

    def _masked(self, chunk: Chunk) -> Chunk:
        return msgspec.structs.replace(chunk, masked=chunk.sample and self._greedy[chunk.seat])

    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        raise AssertionError("the scheduler sends none")

    def close(self) -> None:
        self._executor.close()


async def answers(checkpoint: Checkpoint, *, in_c: bool, **options: Any) -> list[Any]:
    capacity = capacity_of(checkpoint, num_seats=6)
    made: list[GreedyMasked] = []

    def load(config: Any, report: Any) -> LoadedModel:
        executor = Rig(checkpoint, kernels=c_kernels(), num_seats=6).executor if in_c else None
        made.append(GreedyMasked(executor or torch_executor(checkpoint, capacity)))
        return LoadedModel(
            name="tiny",
            vocabulary=ByteVocabulary(),
            chat_format=PlainChatFormat(),
            executor=made[0],
            capacity=capacity,
            eos_token_ids=frozenset({END}),
        )

    async with Engine("tiny", loader=load, page_size=8, max_num_seqs=6, max_num_batched_tokens=96, **options) as engine:
        found = await ask_all(engine)
        statistics = engine.statistics()
        assert statistics.num_free_pages == statistics.num_pages
    assert made[0].num_mixed > 10
    return found


@pytest.mark.parametrize(
    "options", [{}, {"pipeline_depth": 2}, {"num_speculative_tokens": 3, "prompt_lookup_min": 1}], ids=str
)
async def test_masked_sequences_get_vowels_and_the_others_what_they_get_from_torch(
    checkpoint: Checkpoint, options: dict[str, Any]
) -> None:
    ours = await answers(checkpoint, in_c=True, **options)
    agree(ours, await answers(checkpoint, in_c=False))
    for (_, sampling), answer in zip(asks(), ours, strict=True):
        drawn = {token_id for output in answer.outputs for token_id in output.token_ids}
        assert drawn
        assert (drawn <= {*VOWELS, END}) == (sampling.temperature == 0)
