"""When requests are sent: all at once, or by a rate; and never more at a time than may be."""

import itertools
import statistics

import anyio
import pytest

from limelight.bench.arrivals import arrival_seconds, run_all
from limelight.bench.request_result import RequestResult


def test_without_a_rate_all_are_due_at_once() -> None:
    assert arrival_seconds(3, None, 1.0, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("burstiness", "spread"), [(1.0, 1.0), (0.25, 2.0), (100.0, 0.1)])
def test_the_times_between_have_the_mean_and_the_spread_of_their_distribution(burstiness: float, spread: float) -> None:
    due = arrival_seconds(20_000, 4.0, burstiness, seed=1)
    gaps = [after - before for before, after in itertools.pairwise(due)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(spread, rel=0.05)
    assert due == arrival_seconds(20_000, 4.0, burstiness, seed=1)
    assert due != arrival_seconds(20_000, 4.0, burstiness, seed=2)


@pytest.mark.anyio
async def test_no_more_run_at_once_than_there_are_places() -> None:
    now, most = 0, 0

    async def send() -> RequestResult:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.lowlevel.checkpoint()
        now -= 1
        return RequestResult()

    finished: list[RequestResult] = []
    results, duration = await run_all([send] * 10, [0.0] * 10, 3, finished.append)
    assert (most, len(finished)) == (3, 10)
    sent = [result.sent_seconds for result in results]
    assert sent == sorted(sent)
    assert sent[-1] <= duration


@pytest.mark.anyio
async def test_each_is_sent_when_it_is_due() -> None:
    async def send() -> RequestResult:
        return RequestResult()

    results, duration = await run_all([send] * 3, [0.0, 0.02, 0.05], None, lambda _: None)
    assert [result.sent_seconds >= due for result, due in zip(results, [0.0, 0.02, 0.05], strict=True)] == [True] * 3
    assert duration >= 0.05
