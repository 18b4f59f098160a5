"""Many lines at once through the application of an engine, each answer written as it comes."""

from collections.abc import Callable, Iterator

import anyio
import anyio.lowlevel
import msgspec
from litestar.types import ASGIApp

from limelight.batch.in_process import Received, post
from limelight.batch.lines import RefusedLine, RequestLine
from limelight.batch.output_file import HttpAnswer, OutputLine
from limelight.engine import Engine, EngineState
from limelight.errors import EngineNotRunning, Overloaded

LONGEST_WAIT_SECONDS = 5.0


async def run_lines(
    engine: Engine,
    lines: Iterator[RequestLine | RefusedLine],
    write: Callable[[OutputLine], None],
) -> None:
    """Answers `lines`, as many at a time as keep the engine busy; `write` gets answers in the order they complete.

    An overloaded engine is no answer: such a request waits and is sent again.

    Raises:
        EngineFailed, EngineNotRunning: the engine has ended; requests in hand have no answer then.
        OSError: what reading or writing raised.
    """
    app = engine.app()

    async def work() -> None:
        for line in lines:
            write(await _answer(engine, app, line))

    num_at_once = min(engine.config.max_num_requests, 2 * engine.model.capacity.num_seats)
    try:
        async with anyio.create_task_group() as group:
            for _ in range(num_at_once):
                group.start_soon(work)
    except ExceptionGroup as failures:
        raise _first(failures) from None


async def _answer(engine: Engine, app: ASGIApp, line: RequestLine | RefusedLine) -> OutputLine:
    if isinstance(line, RefusedLine):
        await anyio.lowlevel.checkpoint()  # a file of such lines must not hold the loop
        return OutputLine(id=line.id, custom_id=line.custom_id, response=None, error=line.error)
    received = await _post(engine, app, line)
    response = HttpAnswer(received.status, received.headers["x-request-id"], msgspec.Raw(received.body))
    return OutputLine(id=line.id, custom_id=line.custom_id, response=response, error=None)


async def _post(engine: Engine, app: ASGIApp, line: RequestLine) -> Received:
    while True:
        received = await post(app, line.url, line.body)
        if engine.state is not EngineState.READY and received.status >= 500:
            raise engine.failure.again() if engine.failure else EngineNotRunning("the engine has been stopped")
        if received.status != Overloaded.status:
            return received
        seconds = float(received.headers.get("retry-after-ms", 1000)) / 1000
        await anyio.sleep(min(seconds, LONGEST_WAIT_SECONDS))


def _first(failures: ExceptionGroup) -> Exception:
    """The first error that is no group."""
    error: Exception = failures
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
