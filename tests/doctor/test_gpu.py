"""The question for a GPU, with made-up answers and processes that do not answer."""

import sys

import msgspec
import pytest

from limelight.doctor import gpu
from limelight.doctor.computing import gpu_finding
from limelight.doctor.finding import State
from limelight.doctor.gpu import GpuAnswer, answer_of, ask_for_gpu
from limelight.models.device_choice import GpuSupport
from tests.models.test_device_choice import GOOD, changed


@pytest.fixture(autouse=True)
def _there_is_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "may_have_gpu", lambda: True)


def process(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def printing(support: GpuSupport) -> tuple[str, ...]:
    return process(f"print('a warning of some library'); print({msgspec.json.encode(support).decode()!r}, end='')")


def test_a_gpu_that_does_is_told() -> None:
    answer = ask_for_gpu(command=printing(GOOD))
    assert (answer.device, answer.reason) == ("cuda:0", None)
    found = gpu_finding(answer)
    assert (found.state, found.text) == (State.OK, "cuda:0, NVIDIA H200 (sm_90)")
    assert gpu_finding(answer_of(GOOD, "cuda:1")).text == "cuda:1, NVIDIA A10 (sm_86)"


@pytest.mark.parametrize(
    ("support", "text", "advice"),
    [
        (changed(toolkit=None), "is a build without CUDA", "install one with it"),
        (changed(driver=(12, 4)), "the NVIDIA driver is for CUDA 12.4", "update the driver"),
        (changed(triton=None), "Triton is not installed", "install triton"),
    ],
)
def test_what_is_wrong_with_it_is_a_note_with_advice(support: GpuSupport, text: str, advice: str) -> None:
    answer = answer_of(support)
    assert answer.device == "cpu"
    found = gpu_finding(answer)
    assert found.state is State.NOTE
    assert text in found.text
    assert advice in (found.advice or "")
    assert 'device "cpu"' not in (found.advice or "")


def test_a_driver_that_hangs_is_given_up() -> None:
    answer = ask_for_gpu(command=process("import time; time.sleep(60)"), seconds=0.5)
    assert answer == GpuAnswer(device="cpu", reason="torch and the driver gave no answer within 0.5 s")


@pytest.mark.parametrize("code", ["import os; os.abort()", "print('nothing of use')", "raise ImportError('no torch')"])
def test_a_driver_that_ends_its_process_is_survived(code: str) -> None:
    answer = ask_for_gpu(command=process(code))
    assert answer.device == "cpu"
    assert "import torch" in (answer.reason or "")


def test_without_a_driver_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "may_have_gpu", lambda: False)
    answer = ask_for_gpu(command=("/no/such/program",))
    assert gpu_finding(answer).text == "none is used: there is no driver of one"
    assert gpu_finding(answer).state is State.OK
