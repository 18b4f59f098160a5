"""Many sequences hear of several tokens at once; nobody loses one, and what must not wait does not."""

import threading

import anyio
import pytest

from limelight.actors import delivery
from limelight.actors.delivery import Deliveries, seconds_between_messages
from limelight.actors.scheduling.planner import Progress
from limelight.actors.scheduling.sequence import Sequence
from limelight.errors import StepFailure
from limelight.generation import FinishReason, SamplingParams
from limelight.step import SampledLogprobs, SeatSampling
from limelight.testing import babble, scripted_engine

pytestmark = pytest.mark.anyio

NUM_STREAMS, NUM_TOKENS = 24, 60


def sequence(request_id="r", index=0):
    return Sequence(request_id=request_id, index=index, prompt_token_ids=(1, 2), sampling=SeatSampling(temperature=0.0))


def drawn(of, *token_ids, **fields):
    of.token_ids.extend(token_ids)
    return Progress(of, token_ids, **fields)


class TestDeliveries:
    def test_the_first_token_and_the_last_do_not_wait(self):
        deliveries, one = Deliveries(), sequence()
        assert not deliveries.add(drawn(one, 5))
        deliveries.take(one)
        assert deliveries.add(drawn(one, 6))
        assert not deliveries.add(drawn(one, 7, finish_reason=FinishReason.STOP, stop_token_id=7))
        message = deliveries.take(one)
        assert (message.token_ids, message.finish_reason, message.stop_token_id) == ((6, 7), FinishReason.STOP, 7)
        assert not deliveries

    def test_messages_are_joined_in_order_with_all_that_belongs_to_them(self):
        deliveries, one, other = Deliveries(), sequence("a", 1), sequence("b")
        entries = [SampledLogprobs(-float(number), (), ()) for number in range(3)]
        deliveries.add(drawn(one, 5, logprobs=(entries[0],)))
        deliveries.add(drawn(other, 9))
        deliveries.add(drawn(one, 6, 7, logprobs=(entries[1], entries[2]), num_drafts=3, num_accepted=1))
        (first, message), (second, rest) = deliveries.take_all()
        assert (first, second) == (one, other)
        assert message.index == 1
        assert message.token_ids == (5, 6, 7)
        assert message.logprobs == tuple(entries)
        assert (message.num_drafts, message.num_accepted) == (3, 1)
        assert rest.token_ids == (9,)
        assert rest.logprobs is None
        assert not deliveries.take_all()

    def test_those_of_a_request_are_taken_alone(self):
        deliveries, choices, other = Deliveries(), [sequence("a", 0), sequence("a", 1)], sequence("b")
        for each in (*choices, other):
            deliveries.add(drawn(each, 5))
        assert [taken for taken, _ in deliveries.take_of({"a"})] == choices
        assert [taken for taken, _ in deliveries.take_all()] == [other]


def test_few_sequences_never_wait_and_many_share_a_rate():
    assert seconds_between_messages(delivery.FREE_SEQUENCES, None) == 0
    assert seconds_between_messages(64, None) == pytest.approx(64 / delivery.MAX_MESSAGES_PER_SECOND)
    assert seconds_between_messages(100_000, None) == delivery.LONGEST_SECONDS


def test_what_is_asked_for_holds_for_any_number():
    assert seconds_between_messages(100_000, 0.0) == 0
    assert seconds_between_messages(1, 0.5) == 0.5


async def deltas_of_streams(num_streams, **options):
    """The texts of each stream, delta by delta."""
    texts = [[] for _ in range(num_streams)]

    async def read(number, engine):
        sampling = SamplingParams(max_tokens=NUM_TOKENS, seed=number)
        async with engine.stream("x", sampling) as stream:
            async for delta in stream:
                texts[number].append(delta.text)

    async with (
        scripted_engine(babble, num_pages=4096, max_num_seqs=num_streams, **options) as engine,
        anyio.create_task_group() as tasks,
    ):
        for number in range(num_streams):
            tasks.start_soon(read, number, engine)
    return texts


async def test_many_streams_get_several_tokens_a_message_and_lose_none():
    together = await deltas_of_streams(NUM_STREAMS, step_seconds=0.002)
    alone = await deltas_of_streams(NUM_STREAMS, step_seconds=0.002, stream_interval=0.0)
    assert ["".join(parts) for parts in together] == ["".join(parts) for parts in alone]
    assert all(len(parts) == NUM_TOKENS for parts in alone)
    assert all(len(parts) < NUM_TOKENS / 2 for parts in together)
    assert all(len(parts[0]) == 1 for parts in together), "the first token doesn't wait"


async def test_what_waits_is_told_in_time_while_a_step_takes_long():
    go_on = threading.Event()

    def before_step(step):
        if step.number == 4:
            go_on.wait(10)

    engine = scripted_engine("abcdefgh", before_step=before_step, stream_interval=0.05)
    async with engine, engine.stream("x") as stream:
        try:
            text = ""
            with anyio.fail_after(60):
                while len(text) < 4:
                    text += (await anext(stream)).text
            assert text == "abcd"
        finally:
            go_on.set()
        assert "".join([delta.text async for delta in stream]) == "efgh"


async def test_a_failure_comes_after_the_tokens_before_it():
    def before_step(step):
        if step.number == 4:
            raise ValueError("broken")

    read = []
    engine = scripted_engine("abcdefgh", before_step=before_step, stream_interval=30.0)
    async with engine, engine.stream("x") as stream:
        with pytest.raises(StepFailure):
            while True:
                read.append((await anext(stream)).text)
    assert "".join(read) == "abcd"
