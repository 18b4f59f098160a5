"""compressed-tensors against the package of that name, and transformers run on the expanded weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.checkpoint import open_checkpoint
from limelight.models.fields import Fields
from limelight.models.quantization.compressed_groups import read_schemes
from limelight.models.quantization.compressed_tensors import read_compressed_tensors
from tests.models.quantization.quantized_models import Packed, of_layers, pack_rows, quantize, save_quantized, stored_as
from tests.models.quantization.same_logits import assert_same_as_transformers
from tests.models.tiny_models import tiny_llama, tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
COMPRESSORS: dict[str, Any] = {
    "pack-quantized": PackedQuantizationCompressor,
    "int-quantized": NaiveQuantizationCompressor,
    "float-quantized": NaiveQuantizationCompressor,
    "naive-quantized": NaiveQuantizationCompressor,
    "nvfp4-pack-quantized": NVFP4PackedCompressor,
    "mxfp4-pack-quantized": MXFP4PackedCompressor,
}


def extremes(weight: torch.Tensor, weights: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value of each unit that has a scale, in the shape of the scales."""
    outputs, inputs = weight.shape
    if weights["strategy"] == "tensor":
        units = weight.reshape(1, 1, -1)
    elif weights["strategy"] == "channel":
        units = weight.reshape(outputs, 1, -1)
    elif weights["strategy"] == "block":
        rows, columns = weights["block_structure"]
        padded = torch.nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
        blocks = padded.unfold(0, rows, rows).unfold(1, columns, columns)
        units = blocks.reshape(blocks.shape[0], blocks.shape[1], -1)
    else:
        units = weight.reshape(outputs, -1, weights["group_size"])
    low, high = units.amin(-1), units.amax(-1)
    return (low.flatten(), high.flatten()) if weights["strategy"] == "tensor" else (low, high)


def compressed(weight: torch.Tensor, format_: str, weights: dict[str, Any]) -> Packed:
    """The parts that the package stores, and the weight that it makes of them again."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), format=format_)
    state = {"weight": weight}
    if "fp4" in format_:
        largest = weight.reshape(weight.shape[0], -1, weights["group_size"]).abs().amax(-1)
        state["weight_scale"] = (largest / 6).log2().ceil().exp2()
        if format_.startswith("nv"):
            state["weight_global_scale"] = torch.tensor([448 * 6 / float(weight.abs().max())])
            state["weight_scale"] = (largest / 6 * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
    else:
        scales, zeros = calculate_qparams(*extremes(weight, weights), scheme.weights)
        state |= {"weight_scale": scales.float(), "weight_zero_point": zeros}
    parts = COMPRESSORS[format_].compress(state, scheme)
    expanded = COMPRESSORS[format_].decompress({name: part.clone() for name, part in parts.items()}, scheme)["weight"]
    return {name: part.contiguous() for name, part in parts.items()}, expanded.float()


SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "int4 groups": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 16}),
    "int4 groups with zeros": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False},
    ),
    "int4 channels": ("pack-quantized", {"num_bits": 4, "strategy": "channel"}),
    "int4 channels with zeros": ("pack-quantized", {"num_bits": 4, "strategy": "channel", "symmetric": False}),
    "int4 tensor": ("pack-quantized", {"num_bits": 4, "strategy": "tensor"}),
    "int4 tensor with a zero": ("pack-quantized", {"num_bits": 4, "strategy": "tensor", "symmetric": False}),
    "int8 groups with zeros": (
        "pack-quantized",
        {"num_bits": 8, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "int2 groups": ("pack-quantized", {"num_bits": 2, "strategy": "group", "group_size": 8}),
    "int3 groups with zeros": (
        "pack-quantized",
        {"num_bits": 3, "strategy": "group", "group_size": 16, "symmetric": False},
    ),
    "int5 channels with zeros": ("pack-quantized", {"num_bits": 5, "strategy": "channel", "symmetric": False}),
    "w8a8 channels": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "w8a8 channels with zeros": ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    "w8a8 tensor": ("int-quantized", {"num_bits": 8, "strategy": "tensor"}),
    "naive int": ("naive-quantized", {"num_bits": 8, "strategy": "group", "group_size": 16}),
    "fp8 tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8 channels": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8 naive": ("naive-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8 blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]},
    ),
    "fp8 uneven blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [20, 12]},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
    ),
}


def settings_of(format_: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
        **more,
    }


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("shape", [(48, 32), (24, 96)])
def test_every_scheme_expands_to_what_the_package_makes_of_it(name: str, shape: tuple[int, int]) -> None:
    format_, weights = SCHEMES[name]
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    parts, expected = compressed(weight, format_, weights)
    matrix = read_compressed_tensors(Fields(settings_of(format_, weights), "config.json")).matrix("m", stored_as(parts))
    assert matrix.shape == shape
    assert matrix.parts.keys() == parts.keys()
    for part, wanted in matrix.parts.items():
        assert tuple(parts[part].shape) in wanted.shapes
        assert stored_as(parts)[part].type in wanted.types
    # The package multiplies four-bit floating point in bfloat16.
    tolerance = 2**-7 if "fp4" in format_ else 0
    torch.testing.assert_close(matrix.expand(parts), expected, rtol=tolerance, atol=0)
    assert torch.nn.functional.cosine_similarity(matrix.expand(parts).flatten(), weight.flatten(), dim=0) > 0.85


def test_inputs_that_do_not_fill_their_last_word_are_read() -> None:
    weights = {"num_bits": 4, "strategy": "channel", "symmetric": False}
    parts, expected = compressed(torch.randn(7, 37), "pack-quantized", weights)
    settings = Fields(settings_of("pack-quantized", weights), "config.json")
    matrix = read_compressed_tensors(settings).matrix("m", stored_as(parts))
    assert matrix.shape == (7, 37)
    assert torch.equal(matrix.expand(parts), expected)


@pytest.mark.parametrize("seed", [None, 4])
def test_inputs_that_were_sorted_find_their_group(seed: int | None) -> None:
    """Older versions store the group of each input, and zeros as plain numbers; -1 stands for no order."""
    quantized = quantize(torch.randn(16, 64, generator=torch.Generator().manual_seed(1)), 4, 16, sorted_by=seed)
    index = torch.full((64,), -1) if seed is None else quantized.groups
    parts = {
        "weight_packed": pack_rows(quantized.levels, 4),
        "weight_scale": quantized.scales,
        "weight_zero_point": (quantized.zeros - 8).to(torch.int8),
        "weight_shape": torch.tensor([16, 64]),
        "weight_g_idx": index.to(torch.int32),
    }
    weights = {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False, "actorder": "group"}
    settings = Fields(settings_of("pack-quantized", weights), "config.json")
    matrix = read_compressed_tensors(settings).matrix("m", stored_as(parts))
    assert torch.equal(matrix.expand(parts), quantized.weight)


@pytest.mark.parametrize(
    "name", ["int4 groups with zeros", "w8a8 channels", "fp8 tensor", "fp8 uneven blocks", "nvfp4"]
)
def test_logits_agree_with_transformers_on_the_expanded_weights(name: str, tmp_path: Path) -> None:
    format_, weights = SCHEMES[name]
    settings = Fields(settings_of(format_, weights), "config.json")

    def pack(weight: torch.Tensor) -> Packed:
        parts, expected = compressed(weight, format_, weights)
        if format_ == "nvfp4-pack-quantized":  # ours is more exact: compared with the package's above
            expected = read_compressed_tensors(settings).matrix("m", stored_as(parts)).expand(parts)
        return parts | {"input_scale": torch.ones(1), "input_global_scale": torch.ones(1)}, expected

    model = tiny_llama(attention_bias=True, tie_word_embeddings=True)
    save_quantized(model, tmp_path, settings_of(format_, weights), of_layers(pack))
    assert_same_as_transformers(model, tmp_path)


def test_groups_find_their_modules_by_name_pattern_and_class(tmp_path: Path) -> None:
    """q, k and v are one product here, and each is stored in another way; gate and up as well."""
    int4, int8, fp8 = (SCHEMES[name] for name in ("int4 groups", "w8a8 channels", "fp8 tensor"))
    groups = {
        "everything else": {"targets": ["Linear"], "weights": fp8[1], "format": fp8[0]},
        "some": {"targets": [r"re:.*layers\.\d+\.self_attn\.(q|k)_proj$"], "weights": int4[1], "format": int4[0]},
        "one": {"targets": ["model.layers.1.self_attn.k_proj"], "weights": int8[1], "format": int8[0]},
    }

    def pack(module: str, weight: torch.Tensor) -> Packed | None:
        if ".layers." not in module or module.endswith("up_proj"):
            return None
        if module == "model.layers.1.self_attn.k_proj":
            return compressed(weight, *int8)
        return compressed(weight, *(int4 if module.endswith(("q_proj", "k_proj")) else fp8))

    model = tiny_llama()
    settings = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    save_quantized(model, tmp_path, settings, pack)
    assert_same_as_transformers(model, tmp_path)


def test_a_module_that_no_group_targets_is_named(tmp_path: Path) -> None:
    format_, weights = SCHEMES["fp8 tensor"]
    group = {"weights": weights, "format": format_}
    groups = {"a": {"targets": [r"re:.*q_proj"], **group}, "b": {"targets": [r"re:.*k_proj"], **group}}
    settings = {"quant_method": "compressed-tensors", "config_groups": groups}
    save_quantized(tiny_llama(), tmp_path, settings, of_layers(lambda weight: compressed(weight, format_, weights)))
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.down_proj is quantised, but no group"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            torch.tensor([48, 40]),
            r"weight_shape is \[48, 40\], which 4-bit levels in .*weight_packed of \[48, 4\] do not",
        ),
        (torch.tensor([48, -8]), "do not have"),
        (torch.tensor([2**62, 32]), "do not have"),
        (torch.tensor([48, 32, 1]), "is missing or does not hold two integers"),
    ],
)
def test_a_shape_that_the_packed_levels_do_not_have_is_refused(shape: torch.Tensor, message: str) -> None:
    format_, weights = SCHEMES["int4 groups"]
    parts, _ = compressed(torch.randn(48, 32), format_, weights)
    settings = Fields(settings_of(format_, weights), "config.json")
    with pytest.raises(CheckpointError, match=message):
        read_compressed_tensors(settings).matrix("m", stored_as(parts | {"weight_shape": shape}))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"format": "marlin-24"},
            UnsupportedModel,
            "format is 'marlin-24'; Limelight reads compressed-tensors as pack-",
        ),
        ({"format": None}, UnsupportedModel, "format is ''"),
        ({"sparsity_config": {"format": "sparse-bitmask"}}, UnsupportedModel, "sparsity_config is set"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, UnsupportedModel, "transform_config is set"),
        ({"config_groups": None}, CheckpointError, "config_groups is missing"),
        ({"config_groups": {"W8A8": ["Linear"]}}, CheckpointError, "it must be an object"),
        ({"config_groups": {"a": {"targets": ["Linear"]}}}, CheckpointError, "no group of config_groups quantises"),
    ],
)
def test_other_settings_are_refused_by_name(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_schemes(Fields(settings_of(*SCHEMES["int4 groups"]) | change, "config.json"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_bits": 16}, UnsupportedModel, "pack-quantized has weights of type 'int' in 16 bits"),
        ({"type": "float"}, UnsupportedModel, "of type 'float' in 4 bits"),
        ({"strategy": "attn_head"}, UnsupportedModel, "strategy is 'attn_head'"),
        ({"group_size": None}, CheckpointError, "with strategy group it must be at least 1"),
        ({"strategy": "block", "block_structure": [4, 0]}, CheckpointError, "it must be two integers"),
        ({"strategy": "block", "block_structure": [4, 4]}, CheckpointError, "must have unpacked blocks"),
    ],
)
def test_other_schemes_are_refused_by_name(change: dict[str, Any], error: type[Exception], message: str) -> None:
    format_, weights = SCHEMES["int4 groups"]
    with pytest.raises(error, match=message):
        read_schemes(Fields(settings_of(format_, weights | change), "config.json"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("re:(a+)+$", "repeats no group"),
        ("re:" + "a" * 1001, "at most 1000"),
        ("re:(", "no pattern"),
        (3, "list of names"),
    ],
)
def test_a_pattern_that_could_run_for_ever_is_refused(target: object, message: str) -> None:
    format_, weights = SCHEMES["int4 groups"]
    groups = {"a": {"targets": [target], "weights": weights}}
    with pytest.raises(CheckpointError, match=message):
        read_schemes(Fields({"format": format_, "config_groups": groups}, "config.json"))


def test_a_part_of_a_larger_model_is_targeted_by_the_names_in_its_files(tmp_path: Path) -> None:
    int8, fp8 = SCHEMES["w8a8 channels"], SCHEMES["fp8 tensor"]
    one = "language_model.model.layers.0.mlp.up_proj"
    groups = {
        "others": {"targets": ["Linear"], "weights": fp8[1], "format": fp8[0]},
        "one": {"targets": [one], "weights": int8[1], "format": int8[0]},
    }

    def pack(module: str, weight: torch.Tensor) -> Packed | None:
        if ".layers." not in module:
            return None
        return compressed(weight, *(int8 if f"language_model.{module}" == one else fp8))

    model = tiny_model(Gemma3TextConfig, head_dim=8, tie_word_embeddings=True, pad_token_id=0)
    save_quantized(model, tmp_path, None, pack)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"language_model.{name}": part for name, part in tensors.items()}, tmp_path / "model.safetensors")
    whole = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": json.loads((tmp_path / "config.json").read_text()),
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert_same_as_transformers(model, tmp_path)
    del tensors["model.layers.0.mlp.up_proj.weight_scale"]
    save_file({f"language_model.{name}": part for name, part in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{one}\.weight_scale is missing"):
        open_checkpoint(tmp_path)
