"""What steps on a GPU take beside weights and pages: measured, by running the largest ones over a pool of one page.

All sequences share that page, and write over each other: what is computed means nothing, and takes as much as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from limelight.kernels.cuda_graph import PassKind, capture
from limelight.kernels.device import Device
from limelight.models.captured.buffers import StepBuffers
from limelight.models.captured.executor import CapturedStepExecutor
from limelight.step import Capacity, Chunk, SeatSampling, SeatTaken, Step


class StepMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes.

    Attributes:
        working: values of the largest step, logits and attention's partial results included.
        graphs: what capturing all passes will take.
    """

    working: int
    graphs: int


def measure_steps(
    executor: CapturedStepExecutor,
    buffers: StepBuffers,
    device: Device,
    capacity: Capacity,
    num_guesses: int,
    *,
    captured: bool,
) -> StepMemory:
    """Run the largest steps, and capture a few passes to know what all of them will take.

    Args:
        executor: over a pool whose first page is there; nothing has been captured. It is not to be used afterwards.
        buffers: of the executor; empty when this returns.
        num_guesses: most guesses of a sequence in a step.
        captured: passes will be captured.

    Raises:
        OutOfMemory: the device has not enough for these.
    """
    device.trim()
    device.reset_peak()
    held_before = device.memory().peak
    for step in largest_steps(capacity, num_guesses):
        executor.submit(step)()
    device.synchronize()
    working = max(device.memory().peak - held_before, 0)
    buffers.empty()  # the last step is larger than the smaller passes
    device.synchronize()
    return StepMemory(working=working, graphs=_graphs_bytes(device, executor.kinds()) if captured else 0)


def largest_steps(capacity: Capacity, num_guesses: int) -> Iterator[Step]:
    """A prompt over as many rows as a step has; all seats at once, with guesses, penalties and log-probabilities; and
    the end of them. Contexts are short: what kernels ask for depends on rows and seats alone.
    """
    num_seats, budget = capacity.num_seats, capacity.max_num_batched_tokens
    sampling = SeatSampling(temperature=1.0, top_p=0.9, frequency_penalty=0.1, num_logprobs=1)
    longest = min(budget, capacity.max_model_len - 1)
    everyone = tuple(SeatTaken(seat=seat, sampling=sampling, num_prompt_tokens=1) for seat in range(num_seats))
    num_full = min(-(-budget // longest), num_seats)
    yield Step(
        number=1,
        taken=everyone[:num_full],
        chunks=tuple(
            _chunk(capacity, seat, min(longest, budget - seat * longest), 0)
            for seat in range(num_full)
            if budget > seat * longest
        ),
    )
    rows = min(budget // num_seats, num_guesses + 1, capacity.max_model_len - 1)
    seats = range(num_seats)
    yield Step(
        number=2,
        released=tuple(range(num_full)),
        taken=everyone,
        chunks=tuple(_chunk(capacity, seat, rows, rows - 1) for seat in seats),
    )
    yield Step(number=3, released=tuple(seats), chunks=())


def _chunk(capacity: Capacity, seat: int, num_tokens: int, num_drafts: int) -> Chunk:
    """All of its pages are the first one."""
    num_pages = -(-num_tokens // capacity.page_size)
    return Chunk(
        seat=seat,
        start=0,
        num_tokens=num_tokens,
        token_ids=(0,) * num_tokens,
        new_pages=(0,) * num_pages,
        sample=True,
        num_drafts=num_drafts,
    )


def _graphs_bytes(device: Device, kinds: Sequence[PassKind]) -> int:
    """The largest passes of all kinds bring the memory of values, which the others share; each graph has its own
    nodes beside, as many as any other of its kind.
    """
    largest = _taken(device, [_only(kind, kind.sizes[-1:]) for kind in kinds])
    total = largest
    for kind in kinds:
        num_others = len(kind.sizes) - 1
        if num_others:
            both = _taken(device, [_only(kind, kind.sizes[-2:])])
            total += num_others * max(both - _taken(device, [_only(kind, kind.sizes[-1:])]), 0)
    return total


def _taken(device: Device, kinds: Sequence[PassKind]) -> int:
    """What the device has less while these are captured; they are given back."""
    device.trim()
    free_before = device.memory().free
    held = capture(device, kinds)
    taken = max(free_before - device.memory().free, 0)
    del held
    device.synchronize()
    return taken


def _only(kind: PassKind, sizes: Sequence[int]) -> PassKind:
    return PassKind(kind.name, tuple(sizes), kind.make)
