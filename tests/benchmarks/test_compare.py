"""The comparison with other runtimes: ratios and targets on known figures; both kinds of sides as real processes."""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.sides import ProcessSide, Run, ServerSide, SideFailed, free_port, resident_bytes
from benchmarks.workloads import LLAMA_CPP, OPENVINO, WORKLOADS, Workload, at_least, compared, limited, table

PEER = str(Path(__file__).with_name("scripted_peer.py"))
SERVER = """
import sys
from limelight.cli import main
from limelight.testing import babble, scripted_model
raise SystemExit(main(["serve", "--port", sys.argv[1]], loader=scripted_model(babble)))
"""


@pytest.fixture(autouse=True)
def root_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent.parent.parent))


def workload(key: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.key == key)


def test_more_tokens_and_less_time_are_better() -> None:
    assert workload("1").ratio(30.0, 10.0) == 3.0
    assert workload("ttft").ratio(10.0, 30.0) == 3.0
    assert workload("context").ratio(0.0, 1.0) == float("inf")


@pytest.mark.parametrize(
    ("key", "peer", "ours", "theirs", "target", "met"),
    [
        ("1", OPENVINO, 16.0, 10.0, ">= 1.6x", True),
        ("1", f"{OPENVINO} 2026.4", 15.9, 10.0, ">= 1.6x", False),
        ("1", LLAMA_CPP, 16.9, 10.0, ">= 1.7x", False),
        ("8", LLAMA_CPP, 15.0, 10.0, ">= 1.5x", True),
        ("32", OPENVINO, 13.0, 10.0, ">= 1.3x", True),
        ("ttft", OPENVINO, 10.0, 11.0, ">= 1.1x", True),
        ("ttft", LLAMA_CPP, 10.0, 49.0, ">= 5x", False),
        ("1", "vLLM", 1.0, 10.0, "", None),
        ("again", OPENVINO, 1.0, 10.0, "", None),
    ],
)
def test_the_medians_are_compared_with_the_target(
    key: str, peer: str, ours: float, theirs: float, target: str, met: bool | None
) -> None:
    row = compared(workload(key), peer, [ours, 0.0, 1000.0], [theirs, 0.0, 1000.0])
    assert (row.target, row.met, row.limelight, row.peer_value) == (target, met, ours, theirs)


def test_figures_of_our_own_have_limits() -> None:
    assert [limited("x", value, "s", 3.0).met for value in (3.0, 3.1)] == [True, False]
    assert [at_least("x", value, "x", 10.0).met for value in (10.0, 9.9)] == [True, False]
    shown = table([limited("start", 3.1, "s", 3.0), compared(workload("1"), OPENVINO, [32.0], [10.0])]).splitlines()
    assert "MISSED" in shown[1]
    assert "3.20x" in shown[2]


def test_a_run_takes_its_means_over_the_prompts() -> None:
    run = Run.of([0.1, 0.3], [0.5, 0.5], [5, 3])
    assert (run.seconds, run.num_tokens) == (0.5, 8)
    assert run.ttft_seconds == pytest.approx(0.2)
    assert run.tpot_seconds == pytest.approx(0.1)
    assert Run.of([0.1], [0.1], [1]).tpot_seconds == 0.0


def peer(behaviour: str) -> ProcessSide:
    return ProcessSide("peer", [sys.executable, PEER, behaviour])


def test_a_process_does_tasks_whatever_it_prints() -> None:
    with closing(peer("works")) as side:
        assert side.name == "peer 7.0"
        run = side.generate([[1, 2], [3]], 5)
        assert run.num_tokens == 10
        assert run.seconds >= 0.004
        assert run.ttft_seconds <= run.seconds
        assert side.start_seconds > 0
        assert side.resident_bytes() > 2**20


@pytest.mark.parametrize("behaviour", ["fails", "breaks", "short"])
def test_a_process_that_fails_is_told(behaviour: str) -> None:
    with pytest.raises(SideFailed, match=r"^peer"), closing(peer(behaviour)) as side:
        side.generate([[1]], 5)


@contextmanager
def scripted_server() -> Iterator[ServerSide]:
    port = free_port()
    side = ServerSide("server", [sys.executable, "-c", SERVER, str(port)], port)
    with closing(side):
        yield side


def test_a_server_is_driven_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.sides.PROMPT", [65, 66])
    with scripted_server() as side:
        run = side.generate([[65] * 10, [66] * 10], 7)
        assert run.num_tokens == 14
        with pytest.raises(SideFailed, match=r"server: 400"):
            side.generate([[100_000]], 7)


def test_a_server_that_ends_is_told() -> None:
    with pytest.raises(SideFailed, match="server does not serve"):
        ServerSide("server", [sys.executable, "-c", "pass"], free_port())


def test_both_sides_of_a_round_get_the_same_prompts_and_the_first_round_does_not_count() -> None:
    options = compare.parse(["m", "--rounds", "2"])
    seen: list[tuple[str, float]] = []

    def measure(side: str, draw: random.Random) -> float:
        seen.append((side, draw.random()))
        return seen[-1][1]

    ours, theirs = compare.alternate(options, Workload("k", "t", "ms", measure), "ours", "theirs")  # type: ignore[arg-type]
    assert [side for side, _ in seen] == ["ours", "theirs"] * 3
    assert ours == theirs == [value for _, value in seen[2::2]]
    assert len(set(ours)) == 2


def test_only_peers_that_are_given_are_compared() -> None:
    def names(*arguments: str) -> list[str]:
        return [name for name, _, _ in compare.pairs(compare.parse(["m", *arguments]))]

    assert names() == []
    assert names("--openvino-python", "p", "--llama-server", "s", "--vllm-python", "v") == [OPENVINO, LLAMA_CPP, "vLLM"]


def test_resident_memory_is_that_of_the_process() -> None:
    assert resident_bytes(os.getpid()) > 10 * 2**20
