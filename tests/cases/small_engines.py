"""The embedded default model in engines of a few pages, and what tests watch there."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import msgspec

from limelight.engine import Engine, Report
from limelight.generation import Delta, Generation, SamplingParams
from limelight.http import HttpSettings, create_app
from limelight.models.loaded_model import LoadedModel
from limelight.step import Step, StepExecutor, StepResult
from tests.http.wire import client_of

PAGE_TOKENS = 16
PAGE_BYTES = 2 * 30 * PAGE_TOKENS * 3 * 64 * 2
"""Keys and values, 30 layers, 3 heads of 64, bfloat16."""
MODEL = "SmolLM2-135M-Instruct"
LONGEST_CONTEXT = 2048
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class WatchedExecutor:
    """Calls `before_step` on the submit thread, which may block or raise, then runs the step for real."""

    def __init__(self, executor: StepExecutor, before_step: Callable[[Step], None]) -> None:
        self._executor = executor
        self._before_step = before_step

    def submit(self, step: Step) -> Callable[[], StepResult]:
        self._before_step(step)
        return self._executor.submit(step)

    def close(self) -> None:
        self._executor.close()


def default_engine(
    num_pages: int = 128, *, before_step: Callable[[Step], None] | None = None, **options: Any
) -> Engine:
    """An engine over the default model with a pool of `num_pages` (of 16 tokens unless told), not started yet."""

    def load(config: Any, report: Report) -> LoadedModel:
        from limelight.models.loading import load_model

        model = load_model(config, report)
        if before_step is None:
            return model
        return msgspec.structs.replace(model, executor=WatchedExecutor(model.executor, before_step))

    page_size = options.setdefault("page_size", PAGE_TOKENS)
    options.setdefault("max_model_len", min(num_pages * page_size, LONGEST_CONTEXT))
    options.setdefault("max_num_seqs", 16)
    return Engine(loader=load, kv_cache_bytes=num_pages * PAGE_BYTES * page_size // PAGE_TOKENS, **options)


class Gate:
    """Holds the engine's steps back until it is opened, after letting the first `passing` of them through."""

    def __init__(self, passing: int = 0) -> None:
        self._passing = passing
        self._opened = threading.Event()
        self.steps: list[Step] = []

    def __call__(self, step: Step) -> None:
        self.steps.append(step)
        if len(self.steps) > self._passing:
            assert self._opened.wait(60), "nobody opened the gate"

    def open(self) -> None:
        self._opened.set()


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Waits until `condition` holds, with pauses: a loop that only turns would take the interpreter from the model."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.001)


def idle(engine: Engine) -> bool:
    """Whether every request is gone and every page and seat is back."""
    numbers = engine.statistics()
    return (
        (numbers.num_requests, numbers.num_running, numbers.num_waiting) == (0, 0, 0)
        and numbers.num_free_pages == numbers.num_pages
        and numbers.num_free_seats == numbers.num_seats
    )


async def together(engine: Engine, asks: Sequence[tuple[Any, SamplingParams]]) -> list[Generation]:
    """All requests in one tick, in order."""
    results: dict[int, Generation] = {}

    async def ask(number: int, prompt: Any, sampling: SamplingParams) -> None:
        results[number] = await engine.generate(prompt, sampling)

    async with anyio.create_task_group() as tasks:
        for number, (prompt, sampling) in enumerate(asks):
            tasks.start_soon(ask, number, prompt, sampling)
    return [results[number] for number in range(len(asks))]


async def one_by_one(engine: Engine, asks: Sequence[tuple[Any, SamplingParams]]) -> list[Generation]:
    """Each request alone."""
    return [await engine.generate(prompt, sampling) for prompt, sampling in asks]


async def deltas_of(stream: AbstractAsyncContextManager[Any]) -> list[Delta]:
    """Everything that a stream yields."""
    async with stream as running:
        return [delta async for delta in running]


@asynccontextmanager
async def model_client(engine: Engine, settings: HttpSettings | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server on a real socket over a started `engine`; patient, as the model computes on a busy CPU."""
    async with client_of(create_app(engine, settings=settings)) as client:
        client.timeout = httpx.Timeout(100)
        yield client


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request of one user message."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def completion(prompt: Any = "hi", **fields: Any) -> dict[str, Any]:
    """A completion request."""
    return {"model": MODEL, "prompt": prompt, **fields}


def ids(length: int, seed: int = 0) -> list[int]:
    """A prompt of ordinary token ids that shares no page with that of another seed."""
    return [1000 + (seed * 7919 + position * 104729) % 40000 for position in range(length)]
