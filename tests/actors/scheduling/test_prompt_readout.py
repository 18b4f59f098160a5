"""What a sequence tells of its prompt's rows: all of it, once, whatever happens on the way.

The long way is in `test_planner_simulation.py`, where a third of the sequences have a readout.
"""

import pytest

from limelight.actors.scheduling.prompt_readout import PromptReadout
from limelight.generation import FinishReason, Pooling
from tests.actors.scheduling.closed_loop import ClosedLoop, capacity

PROMPT = tuple(range(40))


def test_scores_of_a_prompt_in_chunks_arrive_with_the_first_token():
    loop = ClosedLoop(capacity(budget=16, page_size=4))
    record = loop.add("a", PROMPT, scores=True, max_tokens=2)
    readouts = []
    while loop.live:
        readouts += [chunk.readout for chunk in loop.step().chunks]
    assert record.tokens == record.expected.tokens
    scored = [token_id for readout in readouts if readout for token_id in readout.next_token_ids]
    assert scored == list(PROMPT[1:])
    assert readouts[-1] is None, "a decode reports nothing"


def test_what_must_be_scored_is_not_taken_from_the_prefix_cache_but_put_there():
    loop = ClosedLoop(capacity(page_size=4))
    for name, scores, cached in [("a", False, 0), ("b", True, 0), ("c", False, 36)]:
        record = loop.add(name, PROMPT, scores=scores)
        loop.run()
        assert record.sequence.cached_tokens == cached
    loop = ClosedLoop(capacity(page_size=4))
    loop.add("a", PROMPT, scores=True)
    loop.run()
    assert loop.add("b", PROMPT, pooling=Pooling.LAST, max_tokens=0).sequence.cached_tokens == 0
    loop.run()
    assert loop.records["b", 0].sequence.cached_tokens == 36, "only the last row matters"


@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_a_sequence_that_draws_nothing_ends_with_its_prompt(length):
    loop = ClosedLoop(capacity(page_size=4, max_model_len=5))
    record = loop.add("a", PROMPT[:length], scores=True, max_tokens=0)
    loop.run()
    assert (record.tokens, record.ended, record.expected.finish_reason) == ([], "finished", FinishReason.LENGTH)
    assert not loop.device.seats[0].last_token, "nothing was drawn"


def test_rows_that_are_computed_again_after_a_preemption_are_not_reported_again():
    loop = ClosedLoop(capacity(num_pages=8, page_size=4, budget=2))
    loop.add("high", PROMPT[:1], max_tokens=25)
    loop.step()
    low = loop.add("low", PROMPT[10:30], scores=True, priority=1, max_tokens=2)
    while not loop.planner.num_preemptions:
        loop.step()
    readout = low.sequence.readout
    assert 0 < readout.num_reported < len(PROMPT[10:30])
    assert len(readout.scores) == readout.num_reported
    loop.run()
    assert low.ended == "finished", "the loop compares its scores with those of a solo run"


def test_rows_of_a_failed_step_are_reported_again():
    readout = PromptReadout(10, 0)
    tokens = list(range(10))
    first = readout.plan(tokens, 0, 4)
    assert first.next_token_ids == (1, 2, 3, 4)
    readout.forget_planned()
    assert readout.plan(tokens, 0, 4) == first
    assert readout.plan(tokens, 2, 4).first_row == 2
    last = readout.plan(tokens, 6, 4)
    assert (last.first_row, last.next_token_ids) == (0, (7, 8, 9))


def test_the_sum_of_hidden_states_takes_every_row_once():
    readout = PromptReadout(10, pooling=Pooling.MEAN)
    tokens = list(range(10))
    assert readout.plan(tokens, 0, 6).pooling is Pooling.MEAN
    assert readout.plan(tokens, 0, 6) is None, "computed again"
    assert readout.plan(tokens, 4, 4).first_row == 2
    assert readout.plan(tokens, 8, 2).first_row == 0
