"""Frames by number: nothing twice, nothing lost in silence, and never more memory than allowed."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import StreamGone
from limelight.http.frame_log import FRAME_OVERHEAD_BYTES, MAX_READ_BYTES, FrameLog


async def read_all(log, number=0):
    frames = []
    while part := await log.read(number + len(frames)):
        frames += part
    return frames


@pytest.mark.anyio
async def test_readers_at_their_own_pace_read_the_same():
    log = FrameLog(10_000)
    results = {}

    async def read(name, pause):
        frames = []
        while part := await log.read(len(frames)):
            frames += part
            for _ in range(pause):
                await anyio.lowlevel.checkpoint()
        results[name] = frames

    async with anyio.create_task_group() as tasks:
        for pause in (0, 1, 7):
            tasks.start_soon(read, pause, pause)
        for number in range(50):
            log.append([b"%d" % number])
            await anyio.lowlevel.checkpoint()
        log.close()
    expected = [b"%d" % number for number in range(50)]
    assert results == {0: expected, 1: expected, 7: expected}


@pytest.mark.anyio
async def test_a_read_that_is_cancelled_loses_nothing_and_leaves_nothing():
    log = FrameLog(10_000)
    for _ in range(3):
        with anyio.move_on_after(0):
            await log.read(0)
    assert log._waiting == []
    log.append([b"a", b"b"])
    assert await log.read(0) == [b"a", b"b"]
    assert await log.read(1) == [b"b"]


@pytest.mark.anyio
async def test_a_reader_that_was_overtaken_is_told_and_a_waiting_one_too():
    log = FrameLog(1000)
    for _ in range(20):
        log.append([b"x" * 100])
    assert log.first > 0
    with pytest.raises(StreamGone, match=f"before number {log.first}"):
        await log.read(0)
    assert await read_some(log, log.first)
    log.append([b"end"])
    log.close()
    log.drop_all()
    assert await log.read(log.end) == []
    with pytest.raises(StreamGone):
        await log.read(log.end - 1)


async def read_some(log, number):
    with anyio.fail_after(60):
        return await log.read(number)


@pytest.mark.anyio
async def test_much_is_read_in_parts():
    log = FrameLog(10 * MAX_READ_BYTES)
    frames = [b"x" * (MAX_READ_BYTES // 3)] * 10 + [b"y" * (MAX_READ_BYTES * 2)]
    log.append(frames)
    log.close()
    assert len(await log.read(0)) == 3
    assert await read_all(log) == frames


@given(st.lists(st.lists(st.integers(0, 400), max_size=6), max_size=40), st.integers(500, 3000))
def test_a_log_holds_the_newest_frames_within_its_bound_and_accounts_for_every_byte(appended, max_bytes):
    told = []
    log = FrameLog(max_bytes, told.append)
    every, newest = [], []
    for sizes in appended:
        frames = [bytes(size) for size in sizes]
        every += frames
        log.append(frames)
        kept = log._frames
        assert kept == every[log.first :]
        assert log.end == len(every)
        assert log.num_bytes == sum(map(len, kept)) + FRAME_OVERHEAD_BYTES * len(kept) == sum(told)
        newest = frames or newest
        assert kept[len(kept) - len(newest) :] == newest
        assert log.num_bytes <= max_bytes or kept == newest
    log.drop_all()
    assert log.num_bytes == sum(told) == 0
    assert log.end == len(every)
