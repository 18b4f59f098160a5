"""Real models from their quantised files as the kernels in C multiply with them, against the same weights expanded to
float32 and computed by torch: the perplexity of a text may differ by one percent.
"""

from pathlib import Path

import pytest
import torch

from limelight.models.checkpoint import open_checkpoint
from limelight.models.gguf.checkpoint import GgufCheckpoint
from limelight.models.gguf.vocabulary import vocabulary_from_gguf
from limelight.models.hub import embedded_model
from limelight.step import Chunk, SeatTaken, Step
from tests.models.sequences import GREEDY
from tests.models.tiny_models import Rig, c_kernels

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]
PAGE_SIZE = 16
AT_ONCE = 32
TEXT = """The harbour of the old town lies in a bay that opens to the west, so that the evening sun stands for a while
between the two lighthouses before it sinks into the sea. Two hundred years ago more than forty ships sailed from here
to catch herring, and the smell of smoke from the curing houses could be noticed far inland when the wind was right.
Today there are six boats left. Their owners sell most of what they catch to restaurants, and the rest on the market in
front of the town hall, where people queue from eight o'clock in the morning.

Water boils at a lower temperature in the mountains than at the coast, because the pressure of the air is lower there.
At a height of 3,000 metres it is about 90 degrees Celsius. Whoever wants to cook potatoes there has to wait longer, or
to use a pot with a tight lid, in which the steam raises the pressure again. The same happens in the engine of a
locomotive: the boiler is closed, and the water in it becomes much hotter than 100 degrees.

def mean(values):
    if not values:
        raise ValueError("mean of an empty list")
    return sum(values) / len(values)

"I do not know whether he will come," she said, and looked out of the window once more. "He promised it in his last
letter, but letters from the front take three weeks, and in three weeks a lot can happen." The old man nodded and put
another log on the fire. Nobody spoke for a long time. Then the dog, which had slept under the table since noon, raised
its head and began to growl softly.
"""


@pytest.fixture(params=["SmolLM2 135M", "Gemma 3 270M"])
def path(request: pytest.FixtureRequest) -> Path:
    if request.param == "Gemma 3 270M":
        found: Path = request.getfixturevalue("gemma_file")
        return found
    embedded = embedded_model()
    if embedded is None:
        pytest.skip("the package with the default model is not installed")
    return embedded


def perplexity(rig: Rig, token_ids: list[int]) -> float:
    """Of all tokens but the first, read in chunks whose every row draws."""
    taken = (SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=len(token_ids)),)
    lost, num_pages = 0.0, 0
    for number, start in enumerate(range(0, len(token_ids) - 1, AT_ONCE)):
        given = token_ids[start : min(start + AT_ONCE, len(token_ids) - 1)]
        end = start + len(given)
        pages = tuple(range(num_pages, -(-end // PAGE_SIZE)))
        num_pages += len(pages)
        chunk = Chunk(
            seat=0,
            start=start,
            num_tokens=len(given),
            token_ids=tuple(given),
            new_pages=pages,
            sample=True,
            num_drafts=len(given) - 1,
        )
        rig.executor.submit(Step(number=number, chunks=(chunk,), taken=taken if number == 0 else ()))()
        targets = torch.tensor(token_ids[start + 1 : end + 1])
        lost += float(torch.nn.functional.cross_entropy(rig.logits.double(), targets, reduction="sum"))
    rig.executor.close()
    return float(torch.tensor(lost / (len(token_ids) - 1)).exp())


@pytest.mark.usefixtures("one_torch_thread")
def test_perplexity_stays_that_of_the_expanded_weights(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, GgufCheckpoint)
    token_ids = vocabulary_from_gguf(checkpoint.metadata).encode(TEXT, add_special_tokens=True)
    settings = {"max_model_len": 512, "page_size": PAGE_SIZE, "num_pages": 32}
    expanded = perplexity(Rig(checkpoint, **settings), token_ids)
    packed = perplexity(Rig(checkpoint, kernels=c_kernels(), dtype=torch.bfloat16, **settings), token_ids)
    assert 2 < expanded < 50
    assert abs(packed / expanded - 1) < 0.01
    assert packed != expanded
