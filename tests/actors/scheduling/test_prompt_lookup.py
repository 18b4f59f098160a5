"""Guessing by prompt lookup: what is guessed, what the planner makes of right and wrong guesses, and what they cost."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.prompt_lookup import PromptLookup, Speculation
from limelight.actors.scheduling.sequence import Sequence
from limelight.generation import FinishReason
from limelight.step import Sampled, SeatSampling
from tests.actors.scheduling.closed_loop import capacity

FOUR = Speculation(num_tokens=4, longest=3, shortest=1)


def naive_guess(token_ids, settings, most):
    """The definition, read off the tokens themselves."""
    for length in range(min(settings.longest, len(token_ids) - 1), settings.shortest - 1, -1):
        for end in range(len(token_ids) - 1, length - 1, -1):
            if token_ids[end - length : end] == token_ids[-length:]:
                grown = list(token_ids)
                for offset in range(min(most, settings.num_tokens)):
                    grown.append(grown[end + offset])
                return tuple(grown[len(token_ids) :])
    return ()


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=12),
    st.builds(Speculation, num_tokens=st.integers(1, 6), longest=st.integers(2, 4), shortest=st.integers(1, 2)),
    st.integers(1, 8),
)
def test_a_guess_is_what_followed_the_last_occurrence_of_the_longest_match(pieces, settings, most):
    lookup, token_ids = PromptLookup(settings), []
    for piece in pieces:  # the sequence grows between guesses
        token_ids += piece
        assert lookup.learn(token_ids, 1000) == len(piece) - (len(token_ids) == len(piece))
        assert lookup.guess(token_ids, most) == naive_guess(token_ids, settings, most)


@pytest.mark.parametrize("token_ids", [[1, 2, 3, 4], [1]])
def test_tokens_never_seen_before_give_no_guess(token_ids):
    lookup = PromptLookup(FOUR)
    lookup.learn(token_ids, 10)
    assert lookup.guess(token_ids, 4) == ()


def test_a_lookup_learns_as_much_as_it_is_told_and_guesses_when_it_knows_all():
    lookup, token_ids = PromptLookup(FOUR), [1, 2, 3] * 4
    assert [lookup.learn(token_ids, 5) for _ in range(2)] == [5, 5]
    assert lookup.guess(token_ids, 4) == ()
    assert [lookup.learn(token_ids, 5) for _ in range(2)] == [1, 0]
    assert lookup.learn(token_ids, 0) == 0
    assert lookup.guess(token_ids, 4) == (1, 2, 3, 1)


def guessing(prompt=(1, 2, 3, 1, 2), *, depth=1, limits=None, **settings):
    planner = Planner(limits or capacity(), prefix_caching=True, pipeline_depth=depth, speculation=FOUR)
    sequence = Sequence(request_id="a", prompt_token_ids=prompt, sampling=SeatSampling(temperature=0.0), **settings)
    planner.add(sequence)
    return planner, sequence


def only_chunk(planner):
    step = planner.plan()
    planner.check()
    (chunk,) = step.chunks
    return step, chunk


def test_right_guesses_count_at_once_and_the_next_chunk_starts_behind_them():
    planner, _ = guessing()
    step, chunk = only_chunk(planner)
    assert (chunk.token_ids, chunk.num_drafts, chunk.sample) == ((1, 2, 3, 1, 2, 3, 1, 2, 3), 4, True)
    (progress,) = planner.complete(step.number, (Sampled((3, 1, 2, 3, 7)),))
    planner.check()
    assert (progress.token_ids, progress.num_drafts, progress.num_accepted) == ((3, 1, 2, 3, 7), 4, 4)
    _, chunk = only_chunk(planner)
    assert (chunk.start, chunk.num_tokens, chunk.num_drafts) == (9, 1, 0)
    assert (planner.num_draft_tokens, planner.num_accepted_tokens) == (4, 4)


def test_after_a_wrong_guess_its_position_is_computed_again():
    planner, sequence = guessing()
    step, _ = only_chunk(planner)
    (progress,) = planner.complete(step.number, (Sampled((3, 5)),))
    planner.check()
    assert (progress.token_ids, progress.num_accepted) == ((3, 5), 1)
    _, chunk = only_chunk(planner)
    assert (chunk.start, chunk.num_tokens, chunk.token_ids) == (6, 1, None)
    assert sequence.num_computed_tokens == 7
    assert (planner.num_draft_tokens, planner.num_accepted_tokens) == (4, 1)


def test_a_stop_token_among_right_guesses_ends_the_sequence_there():
    planner, _ = guessing(stop_token_ids=frozenset({1}))
    step, _ = only_chunk(planner)
    (progress,) = planner.complete(step.number, (Sampled((3, 1, 2)),))
    assert (progress.token_ids, progress.stop_token_id, progress.num_accepted) == ((3, 1), 1, 2)
    assert progress.finish_reason is FinishReason.STOP
    assert not planner.has_work
    assert planner.num_free_pages == capacity().num_pages


@pytest.mark.parametrize(("max_tokens", "num_drafts"), [(1, 0), (2, 1), (4, 3), (5, 4), (50, 4)])
def test_guesses_stay_within_the_length_limit(max_tokens, num_drafts):
    planner, _ = guessing(max_tokens=max_tokens)
    _, chunk = only_chunk(planner)
    assert chunk.num_drafts == num_drafts


def test_penalised_sequences_are_not_guessed():
    planner = Planner(capacity(), prefix_caching=True, pipeline_depth=1, speculation=FOUR)
    sampling = SeatSampling(temperature=0.0, repetition_penalty=1.1)
    planner.add(Sequence(request_id="a", prompt_token_ids=(1, 2, 3, 1, 2), sampling=sampling))
    _, chunk = only_chunk(planner)
    assert chunk.num_drafts == 0


def test_guesses_take_only_what_is_left_of_the_budget():
    planner, _ = guessing((1, 2) * 8, limits=capacity(budget=20))
    for number in range(3):
        sequence = Sequence(
            request_id=f"b{number}", prompt_token_ids=(3 + number,), sampling=SeatSampling(temperature=0.0)
        )
        planner.add(sequence)
    step = planner.plan()
    assert [(chunk.num_tokens, chunk.num_drafts) for chunk in step.chunks] == [(17, 1), (1, 0), (1, 0), (1, 0)]


def test_guesses_leave_the_pages_of_the_watermark_alone():
    """Three pages: one is the prompt's, one is kept for the running sequence, and the third may hold guesses."""
    num_drafts = []
    for num_pages in (1, 2, 3):
        planner, _ = guessing((1, 2) * 7 + (1,), limits=capacity(num_pages=num_pages), max_tokens=30)
        num_drafts.append(only_chunk(planner)[1].num_drafts)
    assert num_drafts == [1, 1, 4]


def test_at_depth_two_a_guessing_sequence_waits_for_its_result_and_others_do_not():
    planner, _ = guessing(depth=2)
    sampling = SeatSampling(temperature=0.0, repetition_penalty=1.1)
    planner.add(Sequence(request_id="b", prompt_token_ids=(8, 9), sampling=sampling))
    first, second = planner.plan(), planner.plan()
    assert [chunk.num_drafts for chunk in first.chunks] == [4, 0]
    assert [chunk.token_ids for chunk in second.chunks] == [None]
    planner.complete(first.number, (Sampled((3, 1)), Sampled((4,))))
    third = planner.plan()
    assert [chunk.num_tokens for chunk in third.chunks] == [4 + 1, 1]


def test_a_long_prompt_from_the_prefix_cache_is_learnt_over_several_steps():
    """All lookups of a step together learn no more tokens than the step may compute."""
    planner, _ = guessing((1, 2) * 80, limits=capacity(budget=64), max_tokens=1)
    while planner.has_work:
        step = planner.plan()
        planner.complete(step.number, tuple(Sampled((9,)) if chunk.sample else None for chunk in step.chunks))
    planner.add(Sequence(request_id="b", prompt_token_ids=(1, 2) * 80, sampling=SeatSampling(temperature=0.0)))
    num_drafts = []
    for token in (1, 2, 1):
        step, chunk = only_chunk(planner)
        num_drafts.append(chunk.num_drafts)
        planner.complete(step.number, (Sampled((token,)),))
    assert num_drafts == [0, 0, 4]
