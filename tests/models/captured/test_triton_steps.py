"""Whole steps on Triton's kernels: the tokens of plain torch."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("triton")

from limelight.kernels.triton.attention import Processor
from limelight.kernels.triton.kernels import TritonKernels
from limelight.models.token_masks import mask_bytes
from limelight.step import Chunk, SeatSampling, SeatTaken, Step
from tests.models.captured.rigs import Ask, CapturedRig, Drive, capacity_of, torch_executor
from tests.models.tiny_models import VOCAB_SIZE, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ASKS: list[Ask] = [
    (tuple(range(20)), SeatSampling(temperature=0.9, top_p=0.9, seed=-5, repetition_penalty=1.3), 3),
    ((9, 9, 9, 9, 9, 9, 9), SeatSampling(temperature=0.0), 4),
    ((5, 17, 80, 3), SeatSampling(temperature=1.2, top_k=5, seed=3, logit_bias={7: 4.0}), 3),
]


@pytest.mark.slow
def test_captured_steps_draw_what_torch_draws(tmp_path: Path) -> None:
    checkpoint = saved(tiny_llama(), tmp_path)
    capacity = msgspec.structs.replace(capacity_of(checkpoint, num_seats=2, max_num_batched_tokens=32), page_size=16)
    kernels = TritonKernels("cpu", Processor(capability=90, num_processors=2))
    with np.errstate(all="ignore"):
        rig = CapturedRig(checkpoint, capacity, kernels=kernels)
        ours = Drive(rig.executor, capacity, ASKS, depth=2, guesses=True)
    assert any(call.startswith("replay") for call in rig.device.calls)
    assert ours.planner.num_draft_tokens > 0
    assert ours.tokens == Drive(torch_executor(checkpoint, capacity), capacity, ASKS).tokens


def test_a_masked_chunk_without_a_token_to_draw_is_lost_alone(tmp_path: Path) -> None:
    checkpoint = saved(tiny_llama(), tmp_path)
    capacity = msgspec.structs.replace(capacity_of(checkpoint, num_seats=2, max_num_batched_tokens=32), page_size=16)
    kernels = TritonKernels("cpu", Processor(capability=90, num_processors=2))
    chunks = [
        Chunk(seat=seat, start=0, num_tokens=2, token_ids=(5, 17), new_pages=(seat,), sample=True, masked=seat == 1)
        for seat in range(2)
    ]
    taken = [SeatTaken(seat=seat, sampling=SeatSampling(temperature=0.0), num_prompt_tokens=2) for seat in range(2)]
    with np.errstate(all="ignore"):
        executor = CapturedRig(checkpoint, capacity, captured=False, kernels=kernels).executor
        wait = executor.submit(Step(number=0, chunks=tuple(chunks), taken=tuple(taken)))
        executor.put_masks(0, {1: bytes(mask_bytes(VOCAB_SIZE))})
        free, lost = wait()
    assert free.failure is None
    assert lost.failure is not None
    assert lost.token_ids == ()
