"""What settings, checkpoint and kernels make of numbers."""

import pytest

from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.triton.weight_formats import stored_formats
from limelight.models.precision import Precision, choose_precision, precision_note
from tests.models.tiny_models import c_kernels


class GpuKernels(ReferenceKernels):
    """Reference kernels that say of themselves what Triton's would on a Hopper GPU."""

    stored_formats = stored_formats(90)

    def __init__(self) -> None:
        self.device = "cuda:0"


def on_gpu(stored: str = "bfloat16", **settings: str) -> Precision:
    return choose_precision(EngineConfig(**settings), stored, GpuKernels())


@pytest.mark.parametrize(
    ("settings", "stored", "values", "kv", "weights"),
    [
        ({}, "bfloat16", "bfloat16", "bfloat16", None),
        ({}, "float16", "float16", "float16", "float16"),
        ({}, "float32", "bfloat16", "bfloat16", None),
        ({"dtype": "float16"}, "bfloat16", "float16", "float16", "float16"),
        ({"quantize": "none"}, "bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        ({"quantize": "fp8"}, "float16", "bfloat16", "bfloat16", "FP8"),
        ({"quantize": "int4"}, "bfloat16", "bfloat16", "bfloat16", "INT4_64"),
        ({"kv_cache_dtype": "fp8"}, "bfloat16", "bfloat16", "float8_e4m3fn", None),
        ({"kv_cache_dtype": "bfloat16"}, "bfloat16", "bfloat16", "bfloat16", None),
    ],
)
def test_on_a_gpu(settings: dict[str, str], stored: str, values: str, kv: str, weights: str | None) -> None:
    precision = on_gpu(stored, **settings)
    assert (precision.values, precision.kv, precision.weights) == (values, kv, weights)
    assert precision.plain == (None if weights in ("bfloat16", "float16") else "bfloat16")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "float32"}, 'dtype is "float32", and the kernels for GPUs compute in 16 bits'),
        ({"dtype": "float16", "quantize": "fp8"}, 'use dtype "bfloat16" or quantize "none"'),
        ({"kv_cache_dtype": "float16"}, 'the GPU computes in bfloat16.* use "auto" or "fp8"'),
    ],
)
def test_what_a_gpu_cannot_is_refused_with_the_way_out(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        on_gpu(**settings)


def test_kernels_in_c_keep_keys_and_values_in_sixteen_bits_of_either_kind() -> None:
    kernels = c_kernels()
    for settings, kv in (
        ({}, "bfloat16"),
        ({"dtype": "float32"}, "float32"),
        ({"kv_cache_dtype": "float16"}, "float16"),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, "bfloat16"),
    ):
        assert choose_precision(EngineConfig(**settings), "bfloat16", kernels).kv == kv
    with pytest.raises(ConfigError, match='kv_cache_dtype is "fp8", but the kernels in C keep'):
        choose_precision(EngineConfig(kv_cache_dtype="fp8"), "bfloat16", kernels)


def test_torch_keeps_keys_and_values_in_what_it_computes_in() -> None:
    kernels = ReferenceKernels("cpu")
    assert choose_precision(EngineConfig(dtype="bfloat16", kv_cache_dtype="bfloat16"), "float32", kernels) == (
        Precision.uniform("bfloat16")
    )
    for wanted, instead in (("bfloat16", "bfloat16"), ("fp8", "float32")):
        with pytest.raises(ConfigError, match=f'kv_cache_dtype is "{wanted}", but .*"auto", or dtype "{instead}"'):
            choose_precision(EngineConfig(kv_cache_dtype=wanted), "bfloat16", kernels)


def test_the_note_says_what_weights_are_kept_in() -> None:
    assert precision_note("auto", on_gpu(), "bfloat16") == (
        "computing in bfloat16; weights in bfloat16, or FP8 where they are stored so, keys and values in bfloat16"
    )
    assert precision_note("auto", on_gpu(quantize="fp8", kv_cache_dtype="fp8"), "bfloat16") == (
        "computing in bfloat16; weights in FP8, keys and values in float8_e4m3fn"
    )
