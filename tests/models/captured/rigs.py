"""Executors over one tiny checkpoint, driven by the real planner."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.prompt_lookup import Speculation
from limelight.actors.scheduling.sequence import Sequence as Planned
from limelight.kernels.reference import ReferenceKernels
from limelight.models.captured.buffers import captured_limits, make_buffers
from limelight.models.captured.executor import CapturedStepExecutor
from limelight.models.checkpoint import Checkpoint
from limelight.models.kv_cache import allocate_kv_cache, kv_layout
from limelight.models.precision import Precision
from limelight.models.source import NativeSource
from limelight.models.step_executor import TorchStepExecutor
from limelight.step import Capacity, Sampled, SeatSampling, Step, StepExecutor
from tests.models.captured.queued_device import QueuedDevice
from tests.models.captured.reference_step_kernels import ReferenceStepKernels

NUM_GUESSES = 3


def capacity_of(
    checkpoint: Checkpoint,
    *,
    num_pages: int = 64,
    page_size: int = 8,
    num_seats: int = 8,
    max_num_batched_tokens: int = 96,
) -> Capacity:
    return Capacity(
        num_pages=num_pages,
        page_size=page_size,
        num_seats=num_seats,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=128,
        vocab_size=checkpoint.spec.vocab_size,
    )


class CapturedRig:
    """A captured executor on a queued device, whose pages and buffers start as poison."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        capacity: Capacity,
        *,
        captured: bool = True,
        seed: int | None = None,
        patches: int | None = None,
        kernels: Any = None,
    ) -> None:
        source, self.device, self.capacity = NativeSource(checkpoint), QueuedDevice(seed), capacity
        kernels = kernels or ReferenceStepKernels("cpu")
        model = source.load(kernels, Precision.uniform("float32"), capacity.max_model_len, lambda what, fraction: None)
        kv = pool(kernels, source, capacity)
        limits = captured_limits(capacity, NUM_GUESSES)
        if patches is not None:
            limits = type(limits)(rows=limits.rows, chunks=limits.chunks, sampled=limits.sampled, patches=patches)
        self.buffers = make_buffers(
            capacity, limits, hidden_size=checkpoint.spec.hidden_size, dtype=torch.float32, device="cpu"
        )
        for values in (self.buffers.hidden, self.buffers.residual):
            values.fill_(torch.nan)
        for words in (self.buffers.seats.words, self.buffers.seats.counts, self.buffers.drawn.words):
            words.fill_(0x7FC00000)  # NaN as a float, no token as an integer
        self.adapters: dict[int, Any] = {}
        self.executor = CapturedStepExecutor(model, kernels, kv, self.device, capacity, self.buffers, self.adapters)
        self.progress: list[float] = []
        self.adaptable = model.adaptable
        if captured:
            self.cost = self.executor.capture(self.progress.append)


def torch_executor(checkpoint: Checkpoint, capacity: Capacity) -> TorchStepExecutor:
    source, kernels = NativeSource(checkpoint), ReferenceKernels("cpu")
    model = source.load(kernels, Precision.uniform("float32"), capacity.max_model_len, lambda what, fraction: None)
    return TorchStepExecutor(model, kernels, pool(kernels, source, capacity), capacity)


def pool(kernels: Any, source: NativeSource, capacity: Capacity) -> Any:
    kv = allocate_kv_cache(kernels, kv_layout(source.outline, capacity.num_pages, capacity.page_size, "float32"))
    for layer in kv.layers:
        layer.fill_(torch.nan)
    return kv


Ask = tuple[tuple[int, ...], SeatSampling, int]
"""Prompt, settings, and tokens wanted."""


class Drive:
    """Runs requests through the planner and an executor; what each has drawn, by number.

    Args:
        asks: a new one joins at every second step.
        on_step: told of each step before it is submitted.
    """

    def __init__(
        self,
        executor: StepExecutor,
        capacity: Capacity,
        asks: Sequence[Ask],
        *,
        depth: int = 1,
        guesses: bool = False,
        adapter: int | None = None,
        on_step: Callable[[Step], object] = lambda step: None,
    ) -> None:
        speculation = Speculation(num_tokens=NUM_GUESSES, longest=3, shortest=1) if guesses else None
        self.planner = Planner(capacity, prefix_caching=True, pipeline_depth=depth, speculation=speculation)
        self.drawn: dict[int, list[Sampled]] = {number: [] for number in range(len(asks))}
        self.tokens: dict[int, list[int]] = {number: [] for number in range(len(asks))}
        self.steps: list[Step] = []
        waits: deque[tuple[int, Callable[[], Any]]] = deque()
        waiting = deque(enumerate(asks))
        turn = 0
        while waiting or self.planner.has_work:
            if waiting and turn % 2 == 0:
                number, (prompt, sampling, max_tokens) = waiting.popleft()
                self.planner.add(
                    Planned(
                        request_id=str(number),
                        prompt_token_ids=prompt,
                        sampling=sampling,
                        max_tokens=max_tokens,
                        adapter=adapter,
                    )
                )
            turn += 1
            while (step := self.planner.plan()) is not None:
                on_step(step)
                self.steps.append(step)
                waits.append((step.number, executor.submit(step)))
            if waits:
                number, wait = waits.popleft()
                self._complete(number, wait())
            self.planner.check()

    def _complete(self, number: int, result: Any) -> None:
        for progress in self.planner.complete(number, result):
            entry = int(progress.sequence.request_id)
            self.tokens[entry] += progress.token_ids
            self.drawn[entry].append(Sampled(progress.token_ids, progress.logprobs, progress.failure))
