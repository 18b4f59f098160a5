"""The event loop that all requests share: no stream is lost on it, however busy the garbage collector is.

Case: B120.
"""

import gc

import anyio
import httpx
import pytest

from limelight.testing import scripted_engine
from tests.cases.small_engines import idle, until
from tests.http.wire import CHAT, chat_body, serving

pytestmark = pytest.mark.anyio


async def test_no_stream_stalls_because_its_task_was_collected_as_garbage(caplog):
    """A task that nobody holds may be collected in the middle; here there are collections all the time."""
    answers: list[httpx.Response] = []
    engine = scripted_engine("an answer")
    async with serving(engine) as client:

        async def ask() -> None:
            answers.append(await client.post(CHAT, json=chat_body(stream=True)))

        async def collect() -> None:
            while True:
                gc.collect()
                await anyio.sleep(0.02)

        gc.freeze()  # what is there already need not be looked at each time
        with anyio.fail_after(90):
            async with anyio.create_task_group() as collecting:
                collecting.start_soon(collect)
                async with anyio.create_task_group() as streams:
                    for _ in range(200):
                        streams.start_soon(ask)
                collecting.cancel_scope.cancel()
        gc.unfreeze()
        await until(lambda: idle(engine))
    assert [answer.status_code for answer in answers] == [200] * 200
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert "was destroyed but it is pending" not in caplog.text
