import anyio
import pytest
from anyio.lowlevel import checkpoint

from limelight.actors.channel import Channel, ChannelOverflow

pytestmark = pytest.mark.anyio


async def test_drain_takes_everything_queued_in_order():
    channel = Channel("numbers", capacity=10)
    for number in range(5):
        assert channel.sender.tell(number)
    assert await channel.drain() == [0, 1, 2, 3, 4]
    assert len(channel) == 0


async def test_a_sleeping_receiver_wakes_once_for_all_messages_of_one_turn():
    channel = Channel("numbers", capacity=100)
    batches = []

    async def receive():
        batches.append(await channel.drain())

    async with anyio.create_task_group() as group:
        group.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        for number in range(64):
            channel.sender.tell(number)
    assert batches == [list(range(64))]


async def test_overflow_is_a_bug_and_raises_in_the_sender():
    channel = Channel("numbers", capacity=2)
    channel.sender.tell(1)
    channel.sender.tell(2)
    with pytest.raises(ChannelOverflow, match="numbers holds 2"):
        channel.sender.tell(3)
    assert await channel.drain() == [1, 2]


async def test_a_closed_channel_refuses_messages_and_hands_back_the_unread_ones():
    channel = Channel("numbers", capacity=2)
    channel.sender.tell(1)
    assert channel.close() == [1]
    assert channel.sender.tell(2) is False
    assert channel.close() == []


async def test_cancelling_a_drain_loses_no_message():
    channel = Channel("numbers", capacity=2)
    async with anyio.create_task_group() as group:
        group.start_soon(channel.drain)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        channel.sender.tell(1)
    assert await channel.drain() == [1]


async def test_tell_does_not_suspend_the_sender():
    channel = Channel("numbers", capacity=1000)
    turns = []

    async def other():
        turns.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for number in range(1000):
            channel.sender.tell(number)
        assert turns == []
        await checkpoint()
    assert turns == ["other"]
