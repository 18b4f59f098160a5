"""Which device a setting means, and what is said where a GPU does not do."""

from pathlib import Path

import msgspec
import pytest
import torch

from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.models import device_choice, gpu
from limelight.models.device_choice import Gpu, GpuSupport, choose_device, gpu_support, usable_gpu
from limelight.progress import Note

CPU = "cpu"
HOPPER = Gpu("NVIDIA H200", (9, 0))
GOOD = GpuSupport(
    torch="2.11.0+cu130",
    toolkit="13.0",
    driver=(13, 0),
    gpus=(HOPPER, Gpu("NVIDIA A10", (8, 6))),
    built_for=("sm_75", "sm_80", "sm_90", "compute_90"),
    triton="3.6.0",
)


def changed(**changes: object) -> GpuSupport:
    return msgspec.structs.replace(GOOD, **changes)


@pytest.mark.parametrize(("name", "device"), [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")])
def test_a_gpu_that_does_is_taken(name: str, device: str) -> None:
    assert usable_gpu(name, GOOD) == device


@pytest.mark.parametrize(
    ("support", "says"),
    [
        (changed(toolkit=None), "but torch .* is a build without CUDA; install one with it"),
        (changed(driver=None), "there is no NVIDIA driver that torch .* install one for CUDA 13.0"),
        (changed(driver=(12, 4)), "the NVIDIA driver is for CUDA 12.4 and torch .* for 13.0; update the driver"),
        (changed(gpus=(), failure="device-side assert"), r"the NVIDIA driver fails \(device-side assert\); see what"),
        (changed(gpus=()), "the NVIDIA driver shows no GPU; see what nvidia-smi and CUDA_VISIBLE_DEVICES say"),
        (changed(triton=None), "Triton is not installed, which compiles the kernels; install triton"),
        (changed(triton="3.5.1"), "Triton is 3.5.1, and the kernels need 3.6; install a newer torch"),
        (changed(gpus=(Gpu("Tesla T4", (7, 5)),)), r"Tesla T4 \(sm_75\) is too old, the kernels need sm_80"),
        (changed(gpus=(HOPPER,), built_for=("sm_80",)), r"torch 2.11.0\+cu130 has no code for NVIDIA H200 \(sm_90\)"),
    ],
)
def test_what_is_wrong_and_what_to_do_is_one_line(support: GpuSupport, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        usable_gpu("cuda", support)
    assert caught.value.message.startswith('device is "cuda", but ')
    assert caught.value.message.endswith(', or device "cpu"')
    assert "\n" not in caught.value.message


def test_a_number_that_no_gpu_has_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"shows cuda:0 NVIDIA H200 \(sm_90\), cuda:1 NVIDIA A10 .*use one of these"):
        usable_gpu("cuda:2", GOOD)


def test_code_for_an_earlier_processor_of_the_generation_and_ptx_run() -> None:
    for built_for in (("sm_80",), ("compute_80",), ("sm_86", "sm_120"), ()):
        assert usable_gpu("cuda:1", changed(built_for=built_for)) == "cuda:1"
    with pytest.raises(ConfigError, match="has no code for NVIDIA A10"):
        usable_gpu("cuda:1", changed(built_for=("sm_75", "sm_90a", "compute_90", "unknown")))


def test_a_newer_driver_or_another_minor_version_does() -> None:
    for driver in ((13, 2), (14, 0)):
        assert usable_gpu("cuda", changed(driver=driver)) == "cuda:0"
    assert usable_gpu("cuda", changed(toolkit="13.2")) == "cuda:0"


def test_auto_takes_a_gpu_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "may_have_gpu", lambda: True)
    told: list[str] = []

    def report(what: str, _fraction: float | None) -> None:
        assert isinstance(what, Note)
        told.append(what)

    monkeypatch.setattr(device_choice, "gpu_support", lambda: GOOD)
    assert choose_device("auto", report) == "cuda:0"
    assert told == []
    monkeypatch.setattr(device_choice, "gpu_support", lambda: changed(driver=(12, 4)))
    assert choose_device("auto", report) == CPU
    assert told == ["computing on the CPU: the NVIDIA driver is for CUDA 12.4 and torch 2.11.0+cu130 for 13.0"]
    assert choose_device("auto") == CPU
    with pytest.raises(ConfigError):
        choose_device("cuda", report)


def test_torch_is_not_asked_where_no_driver_of_a_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "gpu_support", pytest.fail)
    monkeypatch.setattr(gpu, "AMD_DEVICE", Path("/missing"))
    monkeypatch.setattr(gpu, "DRIVER", "libmissing-driver.so.1")
    assert choose_device("auto") == choose_device("cpu") == CPU


def test_what_torch_and_the_driver_say_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_support() == GpuSupport(
        torch=torch.__version__,
        toolkit=None,
        triton=gpu_support().triton,
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13020, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (gpu_support().driver, gpu_support().gpus) == ((13, 2), ())
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 0, raising=False)
    assert gpu_support().driver is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80"])
    assert gpu_support().gpus == (Gpu("GPU 0", (8, 0)),)
    assert gpu_support().built_for == ("sm_80",)

    def fails(_index: int) -> str:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nmore")

    monkeypatch.setattr(torch.cuda, "get_device_name", fails)
    assert gpu_support().failure == "CUDA error: all CUDA-capable devices are busy"


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", ""])
def test_a_setting_that_names_no_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"device is .*use auto, cpu, cuda, or cuda:1"):
        EngineConfig(device=name)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, float("nan")])
def test_a_share_of_memory_is_above_nothing_and_at_most_all(share: float) -> None:
    with pytest.raises(ConfigError, match="gpu_memory_utilization is"):
        EngineConfig(gpu_memory_utilization=share)
