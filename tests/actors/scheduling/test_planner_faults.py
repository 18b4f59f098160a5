"""Named behaviours of the planner when pages run out, requests are cancelled or steps fail, one or two in flight."""

import pytest

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.step import Sampled, SeatSampling
from tests.actors.scheduling.closed_loop import ClosedLoop, capacity

depths = pytest.mark.parametrize("depth", [1, 2])
PENALISED = SeatSampling(temperature=0.9, seed=5, frequency_penalty=1.0, repetition_penalty=1.2, num_logprobs=0)


def prompt(length, first=0):
    return [(first + 7 * position) % 50 for position in range(length)]


def idle_pages(loop):
    return loop.planner.num_free_pages, loop.planner.num_free_seats


# ---- preemption


@depths
@pytest.mark.parametrize("sampling", [SeatSampling(temperature=0.0), PENALISED])
def test_two_sequences_in_a_pool_for_one_and_a_half_give_what_they_give_alone(sampling, depth):
    loop = ClosedLoop(capacity(num_pages=40, max_model_len=600), depth=depth)
    records = [loop.add(name, prompt(100, first), max_tokens=400, sampling=sampling) for first, name in enumerate("ab")]
    loop.run()
    assert [len(record.tokens) for record in records] == [400, 400]
    assert loop.planner.num_preemptions == 1  # it comes back only when all of it fits: no thrashing


def test_a_resumed_sequence_brings_its_tokens_only_if_the_seat_counts_them():
    for sampling in (SeatSampling(temperature=0.0), PENALISED):
        loop = ClosedLoop(capacity(num_pages=8))
        records = [
            loop.add(name, prompt(40, first), max_tokens=60, sampling=sampling) for first, name in enumerate("ab")
        ]
        taken = []
        while loop.live:
            taken += loop.step().taken
        assert loop.planner.num_preemptions == 1
        assert len(taken) == 3
        assert taken[2].num_prompt_tokens == 40
        if sampling is PENALISED:
            assert taken[2].prompt_token_ids == tuple(records[1].sequence.prompt_token_ids)
            num_output = len(taken[2].output_token_ids)
            assert taken[2].output_token_ids == tuple(records[1].tokens[:num_output])
            assert 0 < num_output < 60
        else:
            assert taken[2].prompt_token_ids == taken[2].output_token_ids == ()


def test_victims_are_the_lowest_priority_then_the_latest_arrival_and_never_the_best():
    loop = ClosedLoop(capacity(num_pages=16, page_size=4, num_seats=4, max_model_len=64))
    for name, priority in [("best", -1), ("last", 5), ("early", 0), ("late", 0)]:
        loop.add(name, prompt(9, len(loop.records)), priority=priority, max_tokens=50)
    preempted = []
    best = loop.records["best", 0]
    while not best.ended:
        seated = {name for (name, _), record in loop.records.items() if record.sequence.seat is not None}
        loop.step()
        preempted += [
            name for name in seated if not loop.records[name, 0].ended and loop.records[name, 0].sequence.seat is None
        ]
    assert preempted == ["last", "late", "early"]
    loop.run()


def test_the_worst_running_sequence_pauses_without_a_page_and_keeps_what_it_has():
    loop = ClosedLoop(capacity(num_pages=6, page_size=4, num_seats=2, budget=16))
    first = loop.add("first", prompt(5), max_tokens=8)
    loop.step()
    second = loop.add("second", prompt(8, 1), max_tokens=12)
    num_chunks = []
    while not first.ended:
        num_chunks.append(len(loop.step().chunks))
    assert num_chunks == [2, 2, 2, 2, 2, 1, 1]
    assert second.sequence.seat is not None
    loop.run()
    assert loop.planner.num_preemptions == 0


def test_a_sequence_preempted_in_mid_prefill_hits_its_own_pages():
    loop = ClosedLoop(capacity(num_pages=20, page_size=4, num_seats=3, budget=12, max_model_len=80))
    loop.add("old", prompt(9), max_tokens=60, priority=0)
    loop.step()
    late = loop.add("late", prompt(40, 1), max_tokens=3, priority=1)
    loop.step()
    loop.step()
    loop.add("urgent", prompt(30, 2), max_tokens=25, priority=-1)
    while not loop.planner.num_preemptions:
        loop.step()
    again = loop.add("again", prompt(40, 1), max_tokens=3, priority=1)
    loop.run()
    assert late.tokens == again.tokens == late.expected.tokens


@depths
def test_three_choices_in_a_pool_for_two(depth):
    loop = ClosedLoop(capacity(num_pages=14, page_size=16), depth=depth)
    for index in range(3):
        loop.add("choices", prompt(20), index=index, max_tokens=80, sampling=SeatSampling(temperature=1.0, seed=index))
    loop.run()
    assert loop.planner.num_preemptions > 0
    assert len({tuple(record.tokens) for record in loop.records.values()}) == 3


def preempted_in_flight(second_max_tokens=20, failing_step=None):
    """Two sequences, the second one just preempted while its last step is in flight."""
    loop = ClosedLoop(capacity(num_pages=6, page_size=4, num_seats=2, budget=16), depth=2)
    loop.add("first", prompt(5), max_tokens=20)
    second = loop.add("second", prompt(5, 1), max_tokens=second_max_tokens)
    while not loop.planner.num_preemptions:
        if loop.plan(fails=loop.num_steps == failing_step) is None:
            loop.answer()
    assert len(loop.submitted) == 2
    assert second.sequence.seat is None
    assert second.sequence.num_pending_tokens == 1
    return loop, second


def test_a_token_in_flight_at_the_moment_of_preemption_counts():
    loop, second = preempted_in_flight()
    num_tokens = len(second.tokens)
    loop.answer()
    assert len(second.tokens) == num_tokens + 1
    loop.run()
    assert second.ended == "finished"


def test_a_preempted_sequence_may_be_cancelled_while_its_token_is_in_flight():
    loop, second = preempted_in_flight()
    loop.cancel("second")
    loop.run()
    assert second.ended == "cancelled"


def test_a_preempted_sequence_may_end_with_its_token_in_flight():
    _, second = preempted_in_flight()
    num_tokens = len(second.tokens)
    loop, second = preempted_in_flight(second_max_tokens=num_tokens + 1)
    loop.answer()
    assert second.ended == "finished"
    loop.run()


def test_a_preempted_sequence_comes_back_only_when_its_token_in_flight_is_known():
    loop, second = preempted_in_flight()
    loop, second = preempted_in_flight(failing_step=loop.num_steps - 1)
    loop.answer_newest_failure()
    assert loop.records["first", 0].ended == "failed"
    assert loop.plan() is None
    loop.run()
    assert second.ended == "finished"


def test_a_preempted_sequence_is_lost_with_the_failed_step_that_carried_it():
    loop, second = preempted_in_flight()
    loop, second = preempted_in_flight(failing_step=loop.num_steps - 2)
    loop.answer()
    assert second.ended == "failed"
    loop.run()


# ---- cancellation


@depths
@pytest.mark.parametrize("num_steps", range(8))
def test_a_cancelled_request_gives_everything_back_at_once_at_any_moment(num_steps, depth):
    loop = ClosedLoop(capacity(budget=16, num_seats=16), depth=depth)
    idle = idle_pages(loop)
    for index in range(2):
        loop.add("gone", prompt(56), index=index, max_tokens=30)
    for _ in range(num_steps):
        if loop.plan() is None:
            loop.answer()
    loop.cancel("gone")
    assert idle_pages(loop) == idle
    loop.cancel("gone")
    loop.cancel("gone", 1)
    loop.cancel("never seen")
    follower = loop.add("follower", prompt(56), max_tokens=30)
    loop.run()
    assert follower.ended == "finished"


def test_one_choice_is_cancelled_and_the_others_go_on():
    loop = ClosedLoop(capacity())
    for index in range(3):
        loop.add("a", prompt(20), index=index, max_tokens=10)
    loop.step()
    loop.cancel("a", 1)
    loop.run()
    assert [record.ended for record in loop.records.values()] == ["finished", "cancelled", "finished"]


def test_a_seat_is_taken_again_in_the_step_that_releases_it_and_the_old_result_is_dropped():
    loop = ClosedLoop(capacity(num_seats=1), depth=2)
    old = loop.add("old", prompt(20), max_tokens=20)
    loop.plan()
    loop.cancel("old")
    new = loop.add("new", prompt(20, 1), max_tokens=20)
    step = loop.plan()
    assert step.released == tuple(taken.seat for taken in step.taken) == (0,)
    loop.answer()
    assert old.tokens == new.tokens == []
    loop.run()
    assert len(new.tokens) == 20


@pytest.mark.parametrize("fails", [False, True])
def test_pages_of_a_cancelled_owner_serve_others_unless_its_step_fails(fails):
    loop = ClosedLoop(capacity(budget=128), depth=2)
    loop.add("owner", prompt(48))
    loop.plan(fails=fails)
    loop.cancel("owner")
    sharer = loop.add("sharer", prompt(48))
    loop.plan()
    assert sharer.sequence.cached_tokens == 32
    loop.answer()
    assert (sharer.sequence.seat is None) == fails  # started again, or running on
    loop.run()
    assert sharer.ended == "finished"


# ---- failing steps


@depths
def test_a_failed_step_loses_its_sequences_and_nobody_else(depth):
    loop = ClosedLoop(capacity(num_seats=2), depth=depth)
    carried = [loop.add(name, prompt(20, number)) for number, name in enumerate("ab")]
    waiting = loop.add("c", prompt(20))
    loop.step(fails=True)
    assert [record.ended for record in carried] == ["failed", "failed"]
    assert waiting.ended is None
    loop.run()
    assert waiting.ended == "finished"


def test_pages_shared_within_a_failed_step_leave_the_cache():
    loop = ClosedLoop(capacity(budget=128))
    records = [loop.add(f"r{number}", [*prompt(40), number]) for number in range(3)]
    loop.step(fails=True)
    assert [record.sequence.cached_tokens for record in records] == [0, 32, 32]
    assert [record.ended for record in records] == ["failed"] * 3
    assert loop.planner.num_cached_pages == 0
    later = loop.add("later", prompt(40))
    loop.run()
    assert later.sequence.cached_tokens == 0


def test_who_used_pages_of_a_failed_step_in_the_next_one_starts_again():
    loop = ClosedLoop(capacity(budget=128), depth=2)
    owner = loop.add("owner", prompt(40))
    loop.plan(fails=True)
    sharer = loop.add("sharer", [*prompt(40), *prompt(40, 3)])
    bystander = loop.add("bystander", prompt(20, 9))
    loop.plan()
    assert sharer.sequence.cached_tokens == 32
    loop.answer()
    assert (owner.ended, sharer.ended, bystander.ended) == ("failed", None, None)
    assert sharer.sequence.seat is None
    assert bystander.sequence.seat is not None
    assert loop.planner.num_cached_pages == 1  # the bystander's
    loop.answer()
    assert (sharer.tokens, len(bystander.tokens)) == ([], 1)
    loop.run()
    assert sharer.ended == bystander.ended == "finished"


def test_pages_from_before_a_failed_step_stay_in_the_cache():
    loop = ClosedLoop(capacity(budget=16))
    loop.add("a", prompt(64))
    for _ in range(3):
        loop.step()
    loop.step(fails=True)
    assert loop.planner.num_cached_pages == 3
    again = loop.add("again", prompt(64))
    loop.run()
    assert again.sequence.cached_tokens == 48


def test_a_page_that_a_later_step_rewrites_is_not_withdrawn_with_its_former_content():
    loop = ClosedLoop(capacity(num_pages=4, num_seats=1), depth=2)
    loop.add("old", prompt(60))
    loop.plan(fails=True)
    loop.cancel("old")
    new = loop.add("new", prompt(60, 1))
    loop.plan()
    loop.answer()
    assert loop.planner.num_cached_pages == 3
    assert new.sequence.seat is not None
    loop.run()
    assert new.ended == "finished"


def test_a_step_may_fail_before_older_ones_are_through():
    loop = ClosedLoop(capacity(), depth=2)
    both = loop.add("both", prompt(20))
    loop.plan()
    newer = loop.add("newer", prompt(20, 1))
    loop.plan(fails=True)
    loop.answer_newest_failure()
    assert (both.ended, newer.ended) == ("failed", "failed")
    loop.answer()
    assert both.tokens == []
    loop.run()


@depths
def test_a_chunk_that_fails_by_itself_loses_its_sequence_alone_and_its_pages_leave_the_cache(depth):
    planner = Planner(capacity(), prefix_caching=True, pipeline_depth=depth)
    for name, first in (("broken", 0), ("healthy", 3)):
        planner.add(
            Sequence(request_id=name, prompt_token_ids=tuple(prompt(20, first)), sampling=SeatSampling(temperature=0.0))
        )
    step = planner.plan()
    later = planner.plan()
    progress = planner.complete(step.number, (Sampled((), failure="not finite"), Sampled((7,))))
    planner.check()
    assert [(entry.sequence.request_id, entry.failure, entry.token_ids) for entry in progress] == [
        ("broken", "not finite", ()),
        ("healthy", None, (7,)),
    ]
    assert planner.num_cached_pages == 1
    if later is not None:
        (entry,) = planner.complete(later.number, (Sampled((1,)), Sampled((8,))))
        assert entry.sequence.request_id == "healthy"
    again = Sequence(request_id="again", prompt_token_ids=tuple(prompt(20)), sampling=SeatSampling(temperature=0.0))
    planner.add(again)
    planner.plan()
    planner.check()
    assert again.cached_tokens == 0
