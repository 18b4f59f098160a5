"""Which kernels a machine, a model and the settings lead to, and what is refused."""

import pytest

from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.select import select_kernels

CPU, CUDA = "cpu", "cuda"
NEED_C = {
    "cpu_kernels": "portable",
    "deterministic": True,
    "quantize": "int8",
    "num_threads": 2,
}


def without_compiler(_variant: str) -> None:
    return None


def test_models_with_layers_of_our_own_run_in_c() -> None:
    for setting in ("auto", "portable"):
        kernels = select_kernels(EngineConfig(cpu_kernels=setting), CPU, native=True)
        assert isinstance(kernels, CpuKernels)
        assert setting in ("auto", kernels.library.variant)


@pytest.mark.parametrize(
    ("config", "device", "native"),
    [
        (EngineConfig(), CPU, False),
        (EngineConfig(), CUDA, False),
        (EngineConfig(cpu_kernels="reference"), CUDA, True),
        (EngineConfig(cpu_kernels="reference"), CPU, True),
        (EngineConfig(quantize="none"), CPU, False),
    ],
)
def test_everything_else_runs_on_torch(config: EngineConfig, device: str, native: bool) -> None:
    kernels = select_kernels(config, device, native=native)
    assert isinstance(kernels, ReferenceKernels)
    assert kernels.device == device


def test_without_a_compiler_models_run_on_torch() -> None:
    assert isinstance(select_kernels(EngineConfig(), CPU, native=True, find=without_compiler), ReferenceKernels)


@pytest.mark.parametrize("field", NEED_C)
def test_what_torch_cannot_keep_is_refused(field: str) -> None:
    config = EngineConfig(**{field: NEED_C[field]})
    with pytest.raises(ConfigError, match=rf"^{field}.* needs the kernels in C, but .*layers of transformers"):
        select_kernels(config, CPU, native=False)
    with pytest.raises(ConfigError, match=r"can neither be found nor compiled here"):
        select_kernels(config, CPU, native=True, find=without_compiler)


def test_reference_kernels_keep_no_promise_of_equal_tokens() -> None:
    with pytest.raises(ConfigError, match='deterministic needs the kernels in C, but cpu_kernels is "reference"'):
        select_kernels(EngineConfig(cpu_kernels="reference", deterministic=True), CPU, native=True)


class Triton:
    """What is asked of Triton's kernels before they are chosen."""

    def __init__(self, stored_formats: frozenset[str]) -> None:
        self.stored_formats = stored_formats


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Triton:
    kernels = Triton(frozenset({"FP8", "INT4_64"}))
    monkeypatch.setattr("limelight.kernels.triton.make.triton_kernels", lambda _device: kernels)
    return kernels


@pytest.mark.parametrize("quantize", ["auto", "none", "fp8", "int4"])
def test_models_with_layers_of_our_own_run_on_triton_on_a_gpu(hopper: Triton, quantize: str) -> None:
    assert select_kernels(EngineConfig(quantize=quantize), "cuda:0", native=True) is hopper


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"cpu_kernels": "portable"},
            'cpu_kernels is "portable", but the device is cuda:0; use "auto", or "reference"',
        ),
        ({"deterministic": True}, "deterministic is on, but the device is cuda:0"),
        ({"num_threads": 2}, "num_threads is 2, but the device is cuda:0; leave it out"),
        ({"quantize": "int8"}, 'quantize is "int8", which cuda:0 does not multiply with; use "fp8" or "int4"'),
    ],
)
def test_what_a_gpu_does_not_keep_is_refused(hopper: Triton, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        select_kernels(EngineConfig(**settings), "cuda:0", native=True)


def test_weights_of_eight_bits_need_a_processor_for_them(hopper: Triton) -> None:
    hopper.stored_formats = frozenset({"INT4_64"})
    with pytest.raises(ConfigError, match='quantize is "fp8", which cuda:0 does not multiply with; use "int4"'):
        select_kernels(EngineConfig(quantize="fp8"), "cuda:0", native=True)
    for native in (True, False):
        with pytest.raises(ConfigError, match='quantize is "fp8", which is for GPUs'):
            select_kernels(EngineConfig(quantize="fp8"), CPU, native=native)
