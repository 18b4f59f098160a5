"""When masks are asked for: when every token before is known, once for each step, whatever became of its sequences."""

from limelight.actors.channel import Channel
from limelight.actors.mask_requests import MaskRequests
from limelight.actors.messages import Masks
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.step import Capacity, Sampled, SeatSampling

CAPACITY = Capacity(num_pages=8, page_size=8, num_seats=4, max_num_batched_tokens=64, max_model_len=64, vocab_size=9)


class Rig:
    def __init__(self, depth):
        self.planner = Planner(CAPACITY, prefix_caching=True, pipeline_depth=depth)
        self.constraints, self.runner = Channel("constraints", 9), Channel("runner", 9)
        self.masks = MaskRequests(self.planner, self.constraints.sender, self.runner.sender)

    def add(self, name, constraint="a constraint"):
        sequence = Sequence(
            request_id=name, prompt_token_ids=(1, 2), sampling=SeatSampling(temperature=0.0), constraint=constraint
        )
        self.planner.add(sequence)
        return sequence

    def plan(self):
        step = self.planner.plan()
        self.masks.add(step)
        self.masks.ask()
        return step

    def complete(self, step, token_id=5):
        self.planner.complete(
            step.number, tuple(Sampled((token_id,)) if chunk.sample else None for chunk in step.chunks)
        )
        self.masks.ask()

    def asked(self):
        return [
            (message.number, [(row.chunk, row.token_ids) for row in message.rows])
            for message in self.constraints.take()
        ]


def test_at_depth_one_masks_are_asked_for_at_once_with_the_new_tokens():
    rig = Rig(1)
    rig.add("a")
    first = rig.plan()
    assert first.chunks[0].masked
    assert rig.asked() == [(0, [(0, ())])]
    rig.complete(first)
    rig.plan()
    assert rig.asked() == [(1, [(0, (5,))])]


def test_at_depth_two_they_wait_for_the_step_before():
    rig = Rig(2)
    rig.add("a")
    first = rig.plan()
    assert rig.asked() == [(0, [(0, ())])]
    rig.plan()
    assert rig.asked() == []
    rig.complete(first, 6)
    assert rig.asked() == [(1, [(0, (6,))])]


def test_only_constrained_chunks_that_draw_are_rows():
    rig = Rig(1)
    rig.add("free", None)
    rig.add("bound")
    step = rig.plan()
    assert [chunk.masked for chunk in step.chunks] == [False, True]
    assert rig.asked() == [(0, [(1, ())])]


def test_a_step_of_free_sequences_asks_nobody():
    rig = Rig(1)
    rig.add("free", None)
    rig.plan()
    assert rig.asked() == []
    assert rig.runner.take() == []


def test_sequences_that_have_ended_are_left_out_and_the_runner_is_told_all_the_same():
    rig = Rig(2)
    rig.add("a")
    rig.add("b")
    first = rig.plan()
    rig.plan()
    rig.asked()
    rig.planner.cancel("a")
    rig.complete(first)
    assert rig.asked() == [(1, [(1, (5,))])]
    second = Rig(2)
    second.add("a")
    first = second.plan()
    second.plan()
    second.planner.cancel("a")
    second.complete(first)
    assert second.runner.take() == [Masks(1, {})]


def test_a_failed_step_before_leaves_the_next_one_its_masks():
    rig = Rig(2)
    rig.add("a")
    first = rig.plan()
    rig.plan()
    rig.asked()
    rig.planner.fail(first.number)
    rig.masks.ask()
    assert rig.runner.take() == [Masks(1, {})]


def test_after_a_preemption_the_constraint_goes_on_from_what_it_knows():
    rig = Rig(1)
    sequences = [rig.add(name) for name in "ab"]
    known = {"a": [], "b": []}
    for number in range(60):
        step = rig.planner.plan()
        if step is None:
            break
        rig.masks.add(step)
        rig.masks.ask()
        for message in rig.constraints.take():
            for row in message.rows:
                known[row.request_id] += row.token_ids
        rig.complete(step, number % 9)
    assert rig.planner.num_preemptions > 0
    for sequence in sequences:
        output = sequence.token_ids[sequence.num_prompt_tokens :]
        assert known[sequence.request_id] == output[: len(known[sequence.request_id])]
        assert len(output) - len(known[sequence.request_id]) <= 1
