"""When requests are sent, and how many may be on their way at once."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from limelight.bench.request_result import RequestResult

Send = Callable[[], Coroutine[Any, Any, RequestResult]]


def arrival_seconds(num_requests: int, rate: float | None, burstiness: float, seed: int) -> list[float]:
    """When each request is due, from the start of the run; None for `rate` means all at once.

    The times between them follow a gamma distribution of mean 1 / `rate` and shape `burstiness`: 1 is a Poisson
    process, below 1 they come in bursts, far above 1 at even distances.
    """
    if rate is None:
        return [0.0] * num_requests
    draw = random.Random(seed)  # noqa: S311 (reproducible on purpose)
    due, times = 0.0, []
    for _ in range(num_requests):
        times.append(due)
        due += draw.gammavariate(burstiness, 1 / (rate * burstiness))
    return times


async def run_all(
    sends: Sequence[Send], due: Sequence[float], concurrency: int | None, finished: Callable[[RequestResult], None]
) -> tuple[list[RequestResult], float]:
    """Sends every request when it is due and one of `concurrency` places is free; that wait is in no latency.

    Returns:
        The results in the order of `sends`, and the seconds from the start to the end of the last one.
    """
    places = asyncio.Semaphore(concurrency or max(len(sends), 1))
    started = time.perf_counter()

    async def one(send: Send, due_seconds: float) -> RequestResult:
        await asyncio.sleep(max(due_seconds - (time.perf_counter() - started), 0.0))
        async with places:
            sent_seconds = time.perf_counter() - started
            result = await send()
        result.sent_seconds = sent_seconds
        finished(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(send, seconds)) for send, seconds in zip(sends, due, strict=True)]
    return [task.result() for task in tasks], time.perf_counter() - started
