import asyncio
import sys

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.actors.event_log import MIN_UNREAD_TO_MERGE, EventLog, Subscription, merged
from limelight.errors import RequestCancelled, StepFailure
from limelight.generation import Delta, FinishReason, Usage

pytestmark = pytest.mark.anyio


def text_delta(text, index=0, **more):
    return Delta(index=index, text=text, token_ids=(ord(text[0]),), **more)


def log_of(num_choices=1):
    abandoned = []
    return EventLog(num_choices, lambda: abandoned.append(True)), abandoned


async def read_all(subscription):
    deltas = []
    while news := await subscription.next_deltas():
        deltas += news
    return deltas


async def test_a_subscriber_gets_every_delta_then_the_end():
    log, abandoned = log_of()
    subscription = log.subscribe()
    seen = []

    async def read():
        seen.extend(await read_all(subscription))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        for text in "abc":
            await anyio.wait_all_tasks_blocked()
            log.append(text_delta(text))
        log.end()
    assert [delta.text for delta in seen] == ["a", "b", "c"]
    subscription.close()
    assert abandoned == []


async def test_a_slow_subscriber_gets_merged_deltas_of_equal_content():
    log, _ = log_of(num_choices=2)
    subscription = log.subscribe()
    for text in "abc":
        log.append(text_delta(text))
        log.append(text_delta(text.upper(), index=1))
    log.append(Delta(index=1, finish_reason=FinishReason.STOP, stop_reason="x"))
    log.append(Delta(index=0, finish_reason=FinishReason.LENGTH, usage=Usage(prompt_tokens=1, completion_tokens=6)))
    log.end()
    second, first = await subscription.next_deltas()
    assert (first.text, first.finish_reason) == ("abc", FinishReason.LENGTH)
    assert first.usage is not None, "the request's last delta stays the last"
    assert (second.text, second.token_ids, second.stop_reason) == ("ABC", tuple(b"ABC"), "x")
    assert await subscription.next_deltas() == []


async def test_two_subscribers_at_different_speeds_read_the_same():
    log, _ = log_of()
    fast, slow = log.subscribe(), log.subscribe()
    fast_deltas, slow_deltas = [], []
    for number in range(1000):
        log.append(text_delta(chr(97 + number % 26)))
        if number % 3 == 0:
            fast_deltas += await fast.next_deltas()
        if number % 300 == 0:
            slow_deltas += await slow.next_deltas()
    log.end()
    fast_deltas += await read_all(fast)
    slow_deltas += await read_all(slow)
    (whole,) = merged(fast_deltas)
    assert merged(slow_deltas) == [whole]
    assert len(whole.token_ids) == 1000


async def test_a_late_subscriber_starts_with_everything_so_far():
    log, _ = log_of()
    early = log.subscribe()
    log.append(text_delta("a"))
    await early.next_deltas()
    log.append(text_delta("b"))
    late = log.subscribe()
    log.append(text_delta("c"))
    log.end()
    (whole,) = merged(await read_all(late))
    assert whole.text == "abc"
    assert "".join(delta.text for delta in await read_all(early)) == "bc"


async def test_an_unread_log_stays_small():
    log, _ = log_of()
    log.subscribe()
    for number in range(20_000):
        log.append(text_delta(chr(97 + number % 26)))
    assert len(log.read_from(0)[0]) <= MIN_UNREAD_TO_MERGE + 20_000 // 16 + 1
    assert sum(sys.getsizeof(delta) for delta in log.read_from(0)[0]) < 20_000 * 16


async def test_an_error_comes_after_everything_before_it():
    log, _ = log_of()
    subscription = log.subscribe()
    log.append(text_delta("a"))
    log.end(StepFailure("lost"))
    log.end()
    assert [delta.text for delta in await subscription.next_deltas()] == ["a"]
    with pytest.raises(StepFailure, match="lost"):
        await subscription.next_deltas()


async def test_the_last_subscriber_to_leave_abandons_the_request_once():
    log, abandoned = log_of()
    first, second = log.subscribe(), log.subscribe()
    first.close()
    first.close()
    assert abandoned == []
    second.close()
    second.close()
    assert abandoned == [True]


async def test_cancelling_a_wait_loses_nothing():
    log, _ = log_of()
    subscription = log.subscribe()
    async with anyio.create_task_group() as group:
        group.start_soon(subscription.next_deltas)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        log.append(text_delta("a"))
    assert [delta.text for delta in await subscription.next_deltas()] == ["a"]


async def test_a_closed_subscription_gives_what_had_happened_and_then_an_error():
    log, _ = log_of()
    left, stays = log.subscribe(), log.subscribe()
    log.append(text_delta("a"))
    left.close()
    for text in "bcd":
        log.append(text_delta(text))
        await stays.next_deltas()
    assert [delta.text for delta in await left.next_deltas()] == ["a"]
    with pytest.raises(RequestCancelled):
        await left.next_deltas()
    log.end()
    assert await left.next_deltas() == []


async def test_closing_wakes_the_reader():
    log, _ = log_of()
    subscription = log.subscribe()
    reader = asyncio.create_task(subscription.next_deltas())
    await anyio.wait_all_tasks_blocked()
    subscription.close()
    with anyio.fail_after(60), pytest.raises(RequestCancelled):
        await reader


async def test_an_error_is_an_object_of_its_own_for_each_reader():
    log, _ = log_of()
    cause = ValueError("why")
    failure = StepFailure("lost", param="prompt")
    failure.__cause__ = cause
    readers = [log.subscribe(), log.subscribe()]
    log.end(failure)
    caught = []
    for reader in [*readers, readers[0]]:
        with pytest.raises(StepFailure, match="lost") as error:
            await reader.next_deltas()
        caught.append(error.value)
    assert len({id(error) for error in [failure, *caught]}) == 4
    assert all((error.param, error.__cause__) == ("prompt", cause) for error in caught)
    assert failure.__traceback__ is None


@settings(max_examples=200)
@given(
    actions=st.lists(st.tuples(st.sampled_from(["append", "append", "read", "subscribe", "close"]), st.integers(0, 5))),
    many=st.integers(0, 3 * MIN_UNREAD_TO_MERGE),
)
def test_whoever_reads_whenever_reads_the_same(actions, many):
    asyncio.run(check_readers([*actions, *[("append", number % 3) for number in range(many)]]))


async def check_readers(actions):
    """Follow `actions` on a log of three choices; what each reader reads, merged, is what has been appended, merged."""
    log, abandoned = log_of(num_choices=3)
    readers = [(log.subscribe(), [])]
    appended = []
    for number, (action, choice) in enumerate(actions):
        subscription, read = readers[choice % len(readers)]
        if action == "append":
            appended.append(text_delta(chr(97 + number % 26), index=choice % 3))
            log.append(appended[-1])
        elif action == "subscribe":
            readers.append((log.subscribe(), []))
        elif action == "close" and len(readers) > 1:
            subscription.close()
            readers.remove((subscription, read))
            if by_choice(read) != by_choice(appended):
                read += await subscription.next_deltas()
            with pytest.raises(RequestCancelled):
                await subscription.next_deltas()
            assert by_choice(read) == by_choice(appended)
        elif action == "read" and by_choice(read) != by_choice(appended):
            read += await subscription.next_deltas()
            assert by_choice(read) == by_choice(appended)
    assert abandoned == []
    for choice in range(3):
        usage = Usage(prompt_tokens=1, completion_tokens=2) if choice == 2 else None
        appended.append(Delta(index=(choice + 1) % 3, finish_reason=FinishReason.STOP, usage=usage))
        log.append(appended[-1])
    log.end()
    for subscription, read in [*readers, (log.subscribe(), [])]:
        read += await read_all(subscription)
        assert by_choice(read) == by_choice(appended)
        assert [delta.usage is not None for delta in read] == [False] * (len(read) - 1) + [True]
    assert {completion.index: completion.text for completion in log.completions()} == {
        delta.index: delta.text for delta in merged(appended)
    }


def by_choice(deltas):
    return {delta.index: delta for delta in merged(deltas)}


async def test_who_waits_for_the_end_is_not_woken_before(monkeypatch):
    log = EventLog(1, abandoned=lambda: None)
    subscription = log.subscribe()
    turns = []
    original = Subscription.next_deltas

    async def counted(self):
        deltas = await original(self)
        turns.append(len(deltas))
        return deltas

    monkeypatch.setattr(Subscription, "next_deltas", counted)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(subscription.wait_for_end)
        for number in range(20):
            await anyio.lowlevel.checkpoint()
            log.append(Delta(index=0, text=str(number)))
        log.end()
    assert turns == [1, 0], "all news at once, then the end"


async def test_who_waits_for_the_end_hears_of_an_error_and_of_leaving():
    log = EventLog(1, abandoned=lambda: None)
    subscription, other = log.subscribe(), log.subscribe()
    log.append(Delta(index=0, text="a"))
    other.close()
    with pytest.raises(RequestCancelled):
        await other.wait_for_end()
    log.end(StepFailure("broken"))
    with pytest.raises(StepFailure):
        await subscription.wait_for_end()
