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
        (EngineConfig(), CUDA, True),
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
    for device, native, reason in ((CPU, False, "layers of transformers"), (CUDA, True, "the device is cuda")):
        with pytest.raises(ConfigError, match=rf"^{field}.* needs the kernels in C, but .*{reason}"):
            select_kernels(config, device, native=native)
    with pytest.raises(ConfigError, match=r"can neither be found nor compiled here"):
        select_kernels(config, CPU, native=True, find=without_compiler)


def test_reference_kernels_keep_no_promise_of_equal_tokens() -> None:
    with pytest.raises(ConfigError, match='deterministic needs the kernels in C, but cpu_kernels is "reference"'):
        select_kernels(EngineConfig(cpu_kernels="reference", deterministic=True), CPU, native=True)
