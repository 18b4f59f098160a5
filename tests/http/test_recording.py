"""Streams that go on without a reader, and how they end."""

import anyio
import pytest

from limelight.errors import EngineFailed, Overloaded, RequestCancelled
from limelight.generation import GenerationRequest, SamplingParams, TextPrompt
from limelight.http.frame_log import FrameLog
from limelight.http.recording import Recording
from limelight.http.sse import KEEP_ALIVE
from limelight.telemetry.timeline import Delivery
from limelight.testing import scripted_engine
from tests.http.wire import new_exchange

pytestmark = pytest.mark.anyio

SCOPE = {"type": "http", "headers": [(b"x-request-id", b"mine")]}


class PlainFrames:
    """A frame for each token, and one for each of the rest."""

    keep_alive = KEEP_ALIVE

    def opening(self):
        yield b"opening"

    def frames(self, event):
        for delta in event.deltas:
            for token_id in delta.token_ids:
                yield b"%d:%d" % (event.number, token_id)

    def ending(self):
        yield b"ending"

    def failure(self, error):
        yield b"failure " + error.error.code.encode() + b" " + error.error.request_id.encode()


def recording(engine, *, num_requests=1, writer=None, header_wait_seconds=1.0, max_tokens=None, **options):
    requests = [
        GenerationRequest(
            request_id=f"r{number}", prompt=TextPrompt("hi"), sampling=SamplingParams(max_tokens=max_tokens)
        )
        for number in range(num_requests)
    ]
    made = Recording(FrameLog(1_000_000), SCOPE, header_wait_seconds=header_wait_seconds, **options)
    made.start(engine, requests, writer or PlainFrames(), new_exchange(engine))
    return made


async def read(log, number=0):
    frames = []
    with anyio.fail_after(60):
        while part := await log.read(number + len(frames)):
            frames += part
    return frames


async def until_idle(engine):
    with anyio.fail_after(60):
        while engine.statistics().num_free_seats < engine.statistics().num_seats:
            await anyio.lowlevel.checkpoint()


async def test_it_runs_to_its_end_without_any_reader_and_is_read_from_any_number():
    async with scripted_engine("abc") as engine:
        made = recording(engine)
        with anyio.fail_after(60):
            await made.wait()
        everything = await read(made.log)
        assert everything == [b"opening", b"0:97", b"0:98", b"0:99", b"0:256", b"ending"]
        assert [await read(made.log, number) for number in range(7)] == [everything[number:] for number in range(7)]
        assert engine.statistics().num_requests == 0


async def test_several_requests_are_one_stream():
    async with scripted_engine("ab") as engine:
        frames = await read(recording(engine, num_requests=3).log)
    assert frames[0] == b"opening"
    assert frames[-1] == b"ending"
    assert sorted(frames[1:-1]) == sorted(b"%d:%d" % (number, t) for number in range(3) for t in (97, 98, 256))


async def test_a_refusal_is_an_error_of_the_whole_and_leaves_no_frame():
    async with scripted_engine(max_num_requests=1) as engine, engine.stream("hold"):
        made = recording(engine)
        with pytest.raises(Overloaded):
            await made.begun()
        await made.wait()
        assert await read(made.log) == []


async def test_a_failure_after_it_has_begun_is_its_last_frame():
    def fail(step):
        if step.number == 3:
            raise RuntimeError

    async with scripted_engine("abcdef", before_step=fail) as engine:
        made = recording(engine)
        await made.begun()
        frames = await read(made.log)
    assert frames[:2] == [b"opening", b"0:97"]
    assert frames[-1] == b"failure step_failed mine"
    assert b"ending" not in frames


async def test_it_begins_at_the_latest_when_the_wait_is_over():
    async with scripted_engine(step_seconds=20) as engine:
        made = recording(engine, header_wait_seconds=0)
        with anyio.fail_after(60):
            await made.begun()
        assert made.log.end == 1
        made.cancel()
        assert await read(made.log) == [b"opening", b"failure request_cancelled mine"]


async def test_cancelling_aborts_its_requests_and_says_why():
    async with scripted_engine(step_seconds=0.001) as engine:
        made = recording(engine, num_requests=2)
        await made.begun()
        made.cancel(RequestCancelled("enough"))
        made.cancel(EngineFailed("too late to matter"))
        await made.wait()
        assert (await read(made.log))[-1] == b"failure request_cancelled mine"
        await until_idle(engine)


async def test_the_end_of_the_engine_ends_it_with_a_frame():
    async with scripted_engine(step_seconds=0.001) as engine:
        made = recording(engine)
        await made.begun()
    assert (await read(made.log))[-1] == b"failure engine_not_running mine"


async def test_the_death_of_the_engine_ends_it_with_a_frame():
    def script(turn):
        if turn.number == 3:
            raise SystemExit
        return 97

    async with scripted_engine(script) as engine:
        made = recording(engine)
        frames = await read(made.log)
    assert frames[-1] == b"failure engine_failed mine"


async def test_a_bug_of_the_writer_ends_it_with_a_frame(caplog):
    class Broken(PlainFrames):
        def frames(self, event):
            yield b"lost"
            raise ZeroDivisionError

    async with scripted_engine("abc") as engine:
        frames = await read(recording(engine, writer=Broken()).log)
        await until_idle(engine)
    assert frames == [b"opening", b"failure internal_error mine"]
    assert caplog.text.count("request mine failed") == 1
    assert "ZeroDivisionError" in caplog.text


async def test_without_readers_it_is_aborted_after_the_grace_time_and_a_new_reader_stops_the_clock():
    ended = []
    async with scripted_engine(step_seconds=0.001) as engine:
        made = recording(engine, grace_seconds=0.05, ended=lambda: ended.append(True))
        await made.begun()
        with made.reader(Delivery()):
            with made.reader(Delivery()):
                pass
            assert made._grace is None, "one is still reading"
        assert made._grace is not None
        with made.reader(Delivery()):
            assert made._grace is None
        with anyio.fail_after(60):
            await made.wait()
        assert ended == [True]
        assert (await read(made.log))[-1] == b"failure request_expired mine"
        with made.reader(Delivery()):
            pass
        assert made._grace is None, "nothing is left to abort"


async def test_drain_lets_it_finish():
    async with scripted_engine("abcdef", step_seconds=0.01) as engine:
        made = recording(engine)
        await made.begun()
        assert await engine.drain(5)
        assert (await read(made.log))[-1] == b"ending"
