import hypothesis.strategies as st
from hypothesis import given

from limelight.actors.scheduling.fair_queue import AGEING_STEPS, FairQueue
from limelight.actors.scheduling.sequence import Sequence
from limelight.step import SeatSampling


def waiting(arrival, *, priority=0, added_at=0):
    sequence = Sequence(
        request_id=str(arrival), prompt_token_ids=(1,), sampling=SeatSampling(temperature=0.0), priority=priority
    )
    sequence.rank = (1, priority, arrival)
    sequence.num_added_at = added_at
    return sequence


def drain(queue):
    order = []
    while (sequence := queue.first()) is not None:
        queue.remove(sequence)
        order.append(sequence.arrival)
    assert len(queue) == 0
    return order


@given(st.lists(st.integers(-(2**63), 2**63), max_size=20), st.randoms(use_true_random=False))
def test_lower_priority_values_come_first_then_earlier_arrivals(priorities, random):
    sequences = [waiting(arrival, priority=priority) for arrival, priority in enumerate(priorities)]
    random.shuffle(sequences)
    queue = FairQueue()
    for sequence in sequences:
        queue.push(sequence)
    expected = sorted(range(len(priorities)), key=lambda arrival: (priorities[arrival], arrival))
    assert drain(queue) == expected


def test_a_preempted_sequence_returns_to_the_front_of_its_class():
    queue = FairQueue()
    sequences = [waiting(0, priority=1), waiting(1, priority=1), waiting(2, priority=0)]
    for sequence in sequences:
        queue.push(sequence)
    queue.remove(sequences[0])
    queue.push(sequences[0])
    assert drain(queue) == [2, 0, 1]


def test_one_sequence_in_ageing_steps_is_promoted_the_longest_waiting_first():
    queue = FairQueue()
    for arrival, priority in enumerate([5, 9, 0, 7]):
        queue.push(waiting(arrival, priority=priority))
    queue.age(AGEING_STEPS - 1)
    assert queue.first().arrival == 2
    queue.age(AGEING_STEPS)
    assert queue.first().arrival == 0
    queue.remove(queue.first())
    queue.age(2 * AGEING_STEPS - 1)
    assert queue.first().arrival == 2
    queue.age(2 * AGEING_STEPS)
    assert drain(queue) == [1, 2, 3]


def test_a_sequence_is_not_promoted_before_it_has_waited_long_enough():
    queue = FairQueue()
    queue.push(waiting(0, priority=5, added_at=900))
    queue.push(waiting(1, priority=0, added_at=900))
    queue.age(900 + AGEING_STEPS - 1)
    assert queue.first().arrival == 1
    queue.age(900 + AGEING_STEPS)
    assert queue.first().arrival == 0


def test_a_promoted_sequence_stays_promoted_and_does_not_use_up_another_promotion():
    queue = FairQueue()
    old, other, best = waiting(0, priority=5), waiting(1, priority=4), waiting(2, priority=0)
    for sequence in (old, other, best):
        queue.push(sequence)
    queue.age(AGEING_STEPS)
    queue.remove(old)
    queue.push(old)
    assert queue.first() is old
    queue.age(2 * AGEING_STEPS)
    assert drain(queue) == [0, 1, 2]


def test_removed_sequences_leave_no_lasting_entries():
    queue = FairQueue()
    queue.push(waiting(0, priority=-1))
    for arrival in range(1, 5000):
        sequence = waiting(arrival, priority=9)
        queue.push(sequence)
        queue.remove(sequence)
    assert len(queue._by_rank) < 200
    assert len(queue._by_arrival) < 200
    assert drain(queue) == [0]
