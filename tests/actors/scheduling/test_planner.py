"""Named behaviours of the planner: admission, limits, budget, fairness, and what complete() makes of results."""

import pytest

from limelight.actors.scheduling.fair_queue import AGEING_STEPS
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.errors import ContextLengthExceeded, InvalidRequest
from limelight.generation import FinishReason
from limelight.step import Sampled, SampledLogprobs, SeatSampling
from tests.actors.scheduling.closed_loop import ClosedLoop, capacity

depths = pytest.mark.parametrize("depth", [1, 2])


def prompt(length, first=0):
    return [(first + 7 * position) % 50 for position in range(length)]


def bare(**settings):
    """A planner on its own, for results that the simulated device doesn't give."""
    planner = Planner(capacity(), prefix_caching=True, pipeline_depth=settings.pop("depth", 1))
    sequence = Sequence(request_id="a", prompt_token_ids=(1, 2, 3), sampling=SeatSampling(temperature=0.0), **settings)
    planner.add(sequence)
    return planner, sequence


def test_an_empty_planner_plans_nothing_and_starts_when_something_arrives():
    loop = ClosedLoop(capacity())
    assert loop.plan() is None
    loop.add("a", prompt(5))
    loop.run()
    assert loop.plan() is None


@pytest.mark.parametrize(
    ("length", "limits", "words"),
    [
        (100, capacity(max_model_len=100), ["100 tokens", "by 1 tokens"]),
        (130, capacity(max_model_len=100), ["130 tokens", "context length is 100", "by 31 tokens"]),
        (128, capacity(num_pages=8), ["128 tokens", "KV cache holds 128 tokens", "by 1 tokens", "kv_cache_bytes"]),
        (300, capacity(num_pages=8), ["300 tokens", "KV cache holds 128 tokens", "by 173 tokens"]),
    ],
)
def test_a_prompt_that_can_never_fit_is_refused_at_once_with_the_numbers(length, limits, words):
    loop = ClosedLoop(limits)
    with pytest.raises(ContextLengthExceeded) as refused:
        loop.add("a", prompt(length))
    for word in words:
        assert word in refused.value.message
    assert not loop.planner.has_work
    loop.add("a", prompt(20))
    loop.run()


def test_empty_prompts_and_names_in_use_are_refused():
    loop = ClosedLoop(capacity())
    with pytest.raises(InvalidRequest, match="0 tokens"):
        loop.add("a", [])
    loop.add("a", prompt(5))
    with pytest.raises(InvalidRequest, match="choice 0 of request a"):
        loop.planner.add(Sequence(request_id="a", prompt_token_ids=(1,), sampling=SeatSampling(temperature=0.0)))
    loop.run()


@depths
@pytest.mark.parametrize(
    ("length", "max_tokens", "num_output"), [(99, None, 1), (99, 50, 1), (90, None, 10), (90, 3, 3), (10, 10_000, 90)]
)
def test_output_is_limited_by_max_tokens_and_exactly_by_the_rest_of_the_context(length, max_tokens, num_output, depth):
    loop = ClosedLoop(capacity(max_model_len=100), depth=depth)
    record = loop.add("a", prompt(length), max_tokens=max_tokens)
    loop.run()
    assert len(record.tokens) == num_output
    assert record.expected.finish_details is None


@depths
def test_a_sequence_that_outgrows_the_whole_pool_ends_with_length_and_says_why(depth):
    loop = ClosedLoop(capacity(num_pages=4, page_size=16), depth=depth)
    alone = loop.add("a", prompt(50), max_tokens=None)
    longest = loop.add("b", prompt(63, 1), max_tokens=None)
    short = loop.add("c", prompt(10, 2), max_tokens=5)
    loop.run(max_steps=100)
    assert alone.expected.finish_details == longest.expected.finish_details == "kv_cache_full"
    assert (len(alone.tokens), len(longest.tokens), len(short.tokens)) == (15, 2, 5)


@depths
@pytest.mark.parametrize("num_requests", [2, 64])
@pytest.mark.parametrize(
    ("length", "budget"), [(30, 512), (100, 512), (1000, 512), (333, 64), (320, 64), (333, 100), (1000, 219)]
)
def test_equal_prompts_that_arrive_together_are_computed_once(length, budget, num_requests, depth):
    limits = capacity(num_pages=6000, num_seats=64, budget=budget, max_model_len=2048)
    loop = ClosedLoop(limits, depth=depth, checked=False)
    for number in range(num_requests):
        loop.add(f"r{number}", prompt(length), max_tokens=1)
    loop.run()
    num_shared = (length - 1) // 16 * 16
    num_twice = loop.device.num_computed_tokens - num_shared - num_requests * (length - num_shared)
    # The rest of a budget that is no whole number of pages may end a chunk within a page.
    assert 0 <= num_twice <= (16 * loop.num_steps if budget % 16 else 0)


@depths
@pytest.mark.parametrize("budget", [16, 64])
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
def test_a_cached_prompt_keeps_its_last_token_to_compute(length, budget, depth):
    loop = ClosedLoop(capacity(budget=budget), depth=depth)
    first = loop.add("first", prompt(length))
    loop.run()
    again = loop.add("again", prompt(length))
    loop.run()
    together = [loop.add("together", prompt(length), index=index) for index in range(3)]
    loop.run()
    assert first.sequence.cached_tokens == 0
    for record in [again, *together]:
        assert record.sequence.cached_tokens == (length - 1) // 16 * 16
    assert loop.planner.prefix_queries_tokens == 5 * length
    assert loop.planner.prefix_hits_tokens == 4 * ((length - 1) // 16 * 16)


@depths
def test_generated_tokens_are_cached_for_the_next_turn(depth):
    loop = ClosedLoop(capacity(), depth=depth)
    first = loop.add("first", prompt(10), max_tokens=39)
    loop.run()
    history = first.sequence.token_ids
    second = loop.add("second", [*history, 1, 2, 3])
    loop.run()
    assert second.sequence.cached_tokens == 48  # of 49: the last token is never computed


def test_equal_prompts_share_pages_only_under_the_same_salt():
    loop = ClosedLoop(capacity(budget=512))
    salts = [None, None, "", "", "a", "a", "b"]
    records = [loop.add(f"r{number}", prompt(40), cache_salt=salt) for number, salt in enumerate(salts)]
    loop.run()
    assert [record.sequence.cached_tokens for record in records] == [0, 32, 0, 32, 0, 32, 0]


def test_without_prefix_caching_nothing_is_shared():
    loop = ClosedLoop(capacity(), prefix_caching=False)
    records = [loop.add(f"r{number}", prompt(40)) for number in range(3)]
    loop.run()
    assert [record.sequence.cached_tokens for record in records] == [0, 0, 0]
    assert (loop.planner.num_cached_pages, loop.planner.prefix_hits_tokens) == (0, 0)


def test_the_cache_is_looked_up_at_the_moment_of_scheduling():
    loop = ClosedLoop(capacity(num_pages=10, num_seats=1))
    loop.add("cached", prompt(64), max_tokens=1)
    loop.run()
    flood = loop.add("flood", prompt(150, 3), max_tokens=8)
    waiting = loop.add("waiting", prompt(64))
    loop.run()
    assert flood.ended == waiting.ended == "finished"
    assert waiting.sequence.cached_tokens == 0


@depths
@pytest.mark.parametrize("priority", [0, -1])
def test_decodes_advance_in_every_step_of_a_long_prefill(priority, depth):
    loop = ClosedLoop(capacity(num_pages=200, budget=32, max_model_len=2000), depth=depth)
    streams = [loop.add(f"s{number}", prompt(4, number), max_tokens=300) for number in range(3)]
    while not all(record.tokens for record in streams):
        if loop.plan() is None:
            loop.answer()
    long = loop.add("long", prompt(1500), max_tokens=2, priority=priority)
    seats = {record.sequence.seat for record in streams}
    first_step = loop.num_steps
    while not long.tokens:
        name = f"flow{loop.num_steps}"
        if loop.num_steps % 5 == 0 and (name, 0) not in loop.records:
            loop.add(name, prompt(100, loop.num_steps), max_tokens=1, priority=priority)
        if (step := loop.plan()) is None:
            loop.answer()
        else:
            assert seats <= {chunk.seat for chunk in step.chunks if chunk.sample}
    assert loop.num_steps - first_step < 3 * 1500 / 32
    loop.run()


def test_a_short_prompt_starts_beside_a_long_prefill_and_each_gets_half():
    loop = ClosedLoop(capacity(num_pages=400, budget=64, max_model_len=4000))
    loop.add("long", prompt(3000), max_tokens=1)
    for _ in range(3):
        assert loop.step().chunks[0].num_tokens == 64  # alone, it takes everything
    short = loop.add("short", prompt(20, 1), max_tokens=1)
    step = loop.step()
    assert short.ended == "finished"
    assert [chunk.num_tokens for chunk in step.chunks] == [32, 20]
    loop.add("other", prompt(3000, 2), max_tokens=1)
    assert [chunk.num_tokens for chunk in loop.step().chunks] == [48, 16]
    loop.run()


def test_prompts_behind_decodes_use_the_budget_up_to_the_last_token():
    loop = ClosedLoop(capacity())
    for number in range(3):
        loop.add(f"stream{number}", prompt(4, number), max_tokens=20)
    loop.step()
    for number in range(4):
        loop.add(f"prompt{number}", prompt(45, number + 9), max_tokens=1)
    assert [chunk.num_tokens for chunk in loop.step().chunks] == [1, 1, 1, 16, 16, 16, 13]
    assert [chunk.num_tokens for chunk in loop.step().chunks] == [1, 1, 1, 29, 29, 3]
    assert [chunk.num_tokens for chunk in loop.step().chunks] == [1, 1, 1, 26, 32]
    loop.run()


def test_a_steady_flow_of_short_prompts_does_not_starve_a_long_one():
    loop = ClosedLoop(capacity(num_pages=400, budget=64, max_model_len=4000))
    long = loop.add("long", prompt(1000), max_tokens=1)
    for number in range(40):
        for copy in range(3):
            loop.add(f"{number}-{copy}", prompt(30, number + 2 * copy), max_tokens=1)
        loop.step()
        if long.ended:
            break
    assert long.ended == "finished"
    loop.run()


def test_lower_priority_values_are_served_first():
    loop = ClosedLoop(capacity(num_seats=1))
    ended = []
    for name, priority in [("c", 3), ("a", -1), ("d", 3), ("b", 0)]:
        loop.add(name, prompt(5), priority=priority, max_tokens=2)
    while loop.live:
        loop.step()
        ended += [name for (name, _), record in loop.records.items() if record.ended and name not in ended]
    assert ended == ["a", "b", "c", "d"]


def test_ageing_lets_the_lowest_priority_run_under_lasting_load_of_better_ones():
    loop = ClosedLoop(capacity(num_seats=1), checked=False)
    starved = loop.add("starved", prompt(5), priority=2**60, max_tokens=2)
    for number in range(AGEING_STEPS + 10):
        loop.add(f"r{number}", prompt(5), priority=-(2**60), max_tokens=1)
        loop.step()
        if starved.ended:
            break
    assert starved.ended == "finished"
    assert number >= AGEING_STEPS - 1
    loop.run()


@depths
def test_a_head_of_the_queue_that_does_not_fit_yet_is_served_before_later_small_ones(depth):
    loop = ClosedLoop(capacity(num_pages=10), depth=depth)
    loop.add("running", prompt(60), max_tokens=30)
    for _ in range(3):
        loop.plan()
        loop.answer()
    head = loop.add("head", prompt(140, 1), max_tokens=2)
    for number in range(20):
        loop.add(f"small{number}", prompt(8, number), max_tokens=20)
    for _ in range(100):
        if not head.tokens and loop.plan() is None:
            loop.answer()
    assert head.tokens
    assert not any(loop.records[f"small{number}", 0].tokens for number in range(20))
    loop.run()


@depths
def test_a_stop_token_ends_the_sequence_and_later_results_are_dropped(depth):
    loop = ClosedLoop(capacity(), depth=depth)
    free = loop.add("free", prompt(20), max_tokens=40)
    loop.run()
    stop = free.tokens[10]
    record = loop.add("stopped", prompt(20), max_tokens=40, stop_token_ids=frozenset({stop}))
    loop.run()
    assert record.tokens == free.tokens[: free.tokens.index(stop) + 1]


def test_tokens_after_a_stop_token_and_beyond_the_limit_are_cut_with_their_logprobs():
    logprobs = tuple(SampledLogprobs(-float(token), (), ()) for token in (5, 6, 7))
    planner, _ = bare(stop_token_ids=frozenset({6}), max_tokens=9)
    (progress,) = planner.complete(planner.plan().number, (Sampled((5, 6, 7), logprobs),))
    assert (progress.token_ids, progress.logprobs) == ((5, 6), logprobs[:2])
    assert (progress.finish_reason, progress.stop_token_id) == (FinishReason.STOP, 6)
    planner, _ = bare(stop_token_ids=frozenset({7}), max_tokens=2)
    (progress,) = planner.complete(planner.plan().number, (Sampled((5, 6, 7), logprobs),))
    assert (progress.token_ids, progress.finish_reason) == ((5, 6), FinishReason.LENGTH)
    assert not planner.has_work


def test_several_drawn_tokens_are_all_computed_by_the_next_chunk():
    planner, _ = bare(max_tokens=20)
    planner.complete(planner.plan().number, (Sampled((5, 6, 7)),))
    planner.check()
    (chunk,) = planner.plan().chunks
    assert (chunk.start, chunk.token_ids, chunk.sample) == (3, (5, 6, 7), True)
    planner.check()


@pytest.mark.parametrize("token_ids", [(), (5, 6)])
def test_a_step_planned_on_one_drawn_token_is_dropped_if_there_were_more_or_none(token_ids):
    planner, sequence = bare(max_tokens=20, depth=2)
    first, second = planner.plan(), planner.plan()
    progress = planner.complete(first.number, (Sampled(token_ids),))
    assert [entry.token_ids for entry in progress] == ([token_ids] if token_ids else [])
    planner.check()
    assert planner.complete(second.number, (Sampled((9,)),)) == []
    assert sequence.token_ids == [1, 2, 3, *token_ids]
    (chunk,) = planner.plan().chunks
    assert chunk.token_ids == (1, 2, 3, *token_ids)
    planner.check()


def test_results_that_do_not_fit_the_steps_in_flight_are_refused():
    planner, _ = bare(depth=2)
    with pytest.raises(ValueError, match="step 0 is complete"):
        planner.complete(0, ())
    first, second = planner.plan(), planner.plan()
    assert planner.plan() is None
    with pytest.raises(ValueError, match="step 1 is complete, but the steps in flight are"):
        planner.complete(second.number, (Sampled((1,)),))
    with pytest.raises(ValueError, match="one entry per chunk"):
        planner.complete(first.number, ())
    with pytest.raises(ValueError, match="one entry per chunk"):
        planner.complete(first.number, (None,))
    with pytest.raises(ValueError, match="step 7 has failed"):
        planner.fail(7)
    planner.complete(first.number, (Sampled((1,)),))
    planner.check()


def test_decodes_read_their_token_from_the_seat_and_ask_for_a_page_when_they_need_one():
    loop = ClosedLoop(capacity())
    loop.add("a", prompt(14), max_tokens=8)
    first = loop.step()
    assert first.chunks[0].token_ids == tuple(prompt(14))
    chunks = [loop.step().chunks[0] for _ in range(6)]
    assert [chunk.token_ids for chunk in chunks] == [None] * 6
    assert [len(chunk.new_pages) for chunk in chunks] == [0, 0, 1, 0, 0, 0]
    assert [chunk.start for chunk in chunks] == list(range(14, 20))
    loop.run()
