"""Places in the queue: they only fall within a class, and every request that waits to be served has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence, seat_sampling
from limelight.generation import SamplingParams
from limelight.step import Capacity, Sampled

CAPACITY = Capacity(num_pages=12, page_size=4, num_seats=3, max_num_batched_tokens=8, max_model_len=40, vocab_size=100)


def make(planner, number, priority, length):
    sampling = SamplingParams(max_tokens=6, seed=0)
    seat = seat_sampling(
        sampling, seed=0, stop_token_ids=frozenset(), num_prompt_tokens=length, vocab_size=CAPACITY.vocab_size
    )
    planner.add(
        Sequence(
            request_id=f"r{number}",
            index=0,
            prompt_token_ids=tuple(range(number % 7, number % 7 + length)),
            sampling=seat,
            stop_token_ids=frozenset(),
            max_tokens=6,
            priority=priority,
        )
    )


def step(planner):
    """Plan a step and give its result; several choices draw token 1."""
    planned = planner.plan()
    if planned is not None:
        planner.complete(planned.number, tuple(Sampled((1,)) if chunk.sample else None for chunk in planned.chunks))


@pytest.mark.parametrize("prefix_caching", [False, True])
@given(actions=st.lists(st.tuples(st.sampled_from(["add", "step", "cancel"]), st.integers(1, 20)), max_size=60))
def test_positions_fall_and_done_rises_to_the_whole_prompt(prefix_caching, actions):
    planner = Planner(CAPACITY, prefix_caching=prefix_caching, pipeline_depth=1)
    last = {}
    for number, (action, size) in enumerate(actions):
        if action == "add":
            make(planner, number, 0, size)
        elif action == "cancel":
            planner.cancel(f"r{size}")
        else:
            step(planner)
        waiting = []
        for known in range(number + 1):
            progress = planner.prompt_progress(f"r{known}")
            if progress is None:
                continue
            assert 0 <= progress.cached_tokens <= progress.prompt_tokens_done <= progress.prompt_tokens
            assert progress.queue_position <= last.get(known, 1000)
            last[known] = progress.queue_position
            if progress.queue_position:
                waiting.append(progress.queue_position)
                assert progress.prompt_tokens_done == 0
        assert waiting == list(range(1, len(waiting) + 1)), "in the order of arrival, without a gap"


def test_a_higher_class_goes_first():
    planner = Planner(CAPACITY, prefix_caching=True, pipeline_depth=1)
    for number in range(3):
        make(planner, number, 0, 20)
    make(planner, 3, -1, 20)
    assert [planner.prompt_progress(f"r{number}").queue_position for number in range(4)] == [2, 3, 4, 1]
    assert planner.prompt_progress("unknown") is None


def test_what_is_under_way_is_not_done():
    planner = Planner(CAPACITY, prefix_caching=False, pipeline_depth=1)
    make(planner, 0, 0, 20)
    done = []
    for _ in range(3):
        planned = planner.plan()
        done.append(planner.prompt_progress("r0").prompt_tokens_done)
        planner.complete(planned.number, tuple(Sampled((1,)) if chunk.sample else None for chunk in planned.chunks))
        done.append(planner.prompt_progress("r0").prompt_tokens_done)
    assert done == [0, 8, 8, 16, 16, 20]
