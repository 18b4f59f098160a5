"""Sizes of captured passes, and which one a step gets."""

import pytest

from limelight.kernels.cuda_graph import PassKind, capture, sequence_buckets, token_buckets
from limelight.kernels.device import DeviceMemory


class Recorder:
    """A device that writes down what it is asked."""

    name = "cpu"
    num_processors = 1

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._own = 100

    def run(self, work):
        work()
        self.calls.append("run")

    def capture(self, work):
        self._own += 7
        work()
        self.calls.append("capture")
        return self.calls[-2]

    def memory(self):
        return DeviceMemory(total=1000, free=500, own=self._own, peak=self._own)

    def trim(self):
        self.calls.append("trim")

    def synchronize(self):
        self.calls.append("synchronize")


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 9)),
        (24, (1, 2, 4, 8, 16, 24)),
        (30, (1, 2, 4, 8, 16, 24, 30)),
    ],
)
def test_decodes_have_a_bucket_for_each_eight(largest: int, sizes: tuple[int, ...]) -> None:
    assert sequence_buckets(largest) == sizes


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(16, (16,)), (64, (64,)), (65, (64, 65)), (512, (64, 128, 256, 512)), (600, (64, 128, 256, 512, 600))],
)
def test_mixed_steps_have_one_for_each_doubling(largest: int, sizes: tuple[int, ...]) -> None:
    assert token_buckets(largest) == sizes


def test_a_step_gets_the_smallest_pass_that_holds_it() -> None:
    device = Recorder()
    (buckets,), cost = capture(device, [PassKind("decode", (1, 2, 4), lambda size: lambda: None)])
    assert [buckets.fitting(size) for size in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, None]
    assert buckets.graph(5) is None
    assert buckets.graph(3) is not None
    assert (cost.num_graphs, cost.num_bytes) == (3, 21)


def test_each_pass_runs_before_it_is_captured_and_the_largest_is_the_first() -> None:
    device = Recorder()
    done: list[tuple[str, int]] = []
    kinds = [
        PassKind(name, sizes, lambda size, name=name: lambda: done.append((name, size)))
        for name, sizes in (("decode", (1, 8)), ("mixed", (4, 64)))
    ]
    told: list[float] = []
    seconds = iter((10.0, 12.5))
    _, cost = capture(device, kinds, told.append, lambda: next(seconds))
    assert done[::2] == done[1::2] == [("mixed", 64), ("decode", 8), ("mixed", 4), ("decode", 1)]
    assert [call for call in device.calls if call != "trim"] == ["run", "synchronize", "capture"] * 4
    assert told == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert cost.seconds == 2.5
