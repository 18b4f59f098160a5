"""Many fast streams share a number of frames a second; one stream has each token at once."""

from contextlib import ExitStack

import httpx
import pytest

from limelight.http import pace
from limelight.http.app import create_app
from limelight.http.pace import Pace
from limelight.testing import scripted_engine


def test_a_stream_is_counted_while_it_is_open():
    shared = Pace()
    with ExitStack() as streams:
        for _ in range(pace.FREE_STREAMS):
            streams.enter_context(shared.stream())
        assert shared.seconds_between_frames == 0
        streams.enter_context(shared.stream())
        assert shared.seconds_between_frames == pytest.approx((pace.FREE_STREAMS + 1) / pace.MAX_FRAMES_PER_SECOND)
        with pytest.raises(ZeroDivisionError), shared.stream():
            raise ZeroDivisionError
        assert shared.seconds_between_frames == pytest.approx((pace.FREE_STREAMS + 1) / pace.MAX_FRAMES_PER_SECOND)
    assert shared.seconds_between_frames == 0


@pytest.mark.parametrize(("limit", "fewest", "most"), [(1e6, 40, 50), (20, 1, 8)])
def test_what_comes_before_its_time_is_merged_and_nothing_is_lost(monkeypatch, limit, fewest, most):
    import anyio

    monkeypatch.setattr(pace, "FREE_STREAMS", 0)
    monkeypatch.setattr(pace, "MAX_FRAMES_PER_SECOND", limit)
    answer = "abcdefghij" * 4

    async def run() -> list[str]:
        async with scripted_engine(answer, step_seconds=0.002) as engine:
            transport = httpx.ASGITransport(create_app(engine))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                body = {"model": "scripted", "prompt": "x", "stream": True, "max_tokens": 100}
                response = await client.post("/v1/completions", json=body)
                return [line for line in response.text.splitlines() if line.startswith("data: {")]

    lines = anyio.run(run)
    texts = "".join(line.split('"text":"')[1].split('"')[0] for line in lines if '"text":"' in line)
    assert texts == answer
    assert fewest <= len(lines) <= most


def test_streams_that_wait_for_a_seat_slow_no_other():
    import anyio

    async def run() -> tuple[float, int]:
        async with scripted_engine("ab", step_seconds=0.05, max_num_seqs=1) as engine:
            app = create_app(engine)
            shares = []
            original = Pace.stream

            def counted(self):
                shares.append(self._num_open)
                return original(self)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Pace, "stream", counted)
                async with (
                    httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
                    anyio.create_task_group() as tasks,
                ):
                    for _ in range(4):
                        body = {"model": "scripted", "prompt": "x", "stream": True}
                        tasks.start_soon(lambda body=body: client.post("/v1/completions", json=body))
            return max(shares), len(shares)

    most, streams = anyio.run(run)
    assert streams == 4
    assert most <= 1
