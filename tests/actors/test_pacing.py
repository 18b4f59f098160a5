"""A paced request loses nothing and gives news exactly when it is due."""

from hypothesis import given
from hypothesis import strategies as st

from limelight.actors.event_log import merged
from limelight.actors.pacing import Pacer
from limelight.generation import Delta, FinishReason

sizes = st.lists(st.integers(0, 4), min_size=1, max_size=30)


@given(sizes, st.integers(1, 6))
def test_news_come_with_the_first_token_after_each_interval_and_at_the_end(sizes, interval):
    deltas = [Delta(text="x" * size, token_ids=tuple(range(size))) for size in sizes]
    deltas[-1] = Delta(text=deltas[-1].text, token_ids=deltas[-1].token_ids, finish_reason=FinishReason.LENGTH)
    pacer = Pacer(0, interval)
    given_out = [(number, due) for number, delta in enumerate(deltas) if (due := pacer.add(delta)) is not None]
    assert merged(due for _, due in given_out) == merged(deltas)
    first, *_ = (number for number, size in enumerate(sizes) if size or number == len(sizes) - 1)
    assert given_out[0][0] == first
    for _, due in given_out[1:-1]:
        assert interval <= len(due.token_ids) < interval + max(sizes)
    assert given_out[-1][1].finish_reason is FinishReason.LENGTH
