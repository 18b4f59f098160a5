from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.checkpoint import check_parameters, open_checkpoint
from limelight.models.gguf.checkpoint import GgufCheckpoint
from limelight.models.gguf.file import GgufFile
from limelight.models.hub import embedded_model
from limelight.models.spec import RopeScaling
from tests.models.gguf.stored_blocks import FORMAT_OF, stored, values_of
from tests.models.gguf.written_models import finish, interleaved_rows

HIDDEN, MLP, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 64, 96, 4, 2, 16, 40, 2
F32 = gguf.GGMLQuantizationType.F32


def hugging_face_tensors(*, tied: bool = False, biases: bool = False) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def made(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": made(VOCAB, HIDDEN), "model.norm.weight": made(HIDDEN)}
    if not tied:
        tensors["lm_head.weight"] = made(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (MLP, HIDDEN),
            "mlp.up_proj": (MLP, HIDDEN),
            "mlp.down_proj": (HIDDEN, MLP),
        }
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = made(*shape)
            if biases:
                tensors[f"model.layers.{layer}.{name}.bias"] = made(shape[0])
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = made(HIDDEN)
    return tensors


def gguf_name(name: str) -> str:
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outer:
        return outer[name]
    _, _, layer, *middle, suffix = name.split(".")
    inner = {
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
        "up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }[middle[-1]]  # fmt: skip
    return f"blk.{layer}.{inner}.{suffix}"


def write(
    path: Path,
    tensors: dict[str, np.ndarray],
    matrices: gguf.GGMLQuantizationType = F32,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    architecture: str = "llama",
    **sizes: Any,
) -> Path:
    """A llama GGUF file as llama.cpp's converter writes it. `sizes` overwrite metadata; None leaves it out."""
    writer = gguf.GGUFWriter(path, architecture)
    integers = {
        "block_count": LAYERS, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": MLP,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HEAD_DIM,
    } | sizes  # fmt: skip
    for name, value in integers.items():
        if isinstance(value, list):
            writer.add_array(f"llama.{name}", value)
        elif value is not None:
            writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 5000.0)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    change(writer)
    for name, tensor in tensors.items():
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2]) if name.startswith("model.l") else None
        value = interleaved_rows(tensor, heads) if heads else tensor
        kind = matrices if value.ndim == 2 else F32
        converted = gguf_name(name) if name.startswith(("model.", "lm_head.")) else name
        writer.add_tensor(converted, gguf.quants.quantize(value, kind), raw_dtype=kind)
    finish(writer)
    return path


@pytest.mark.parametrize("biases", [False, True])
def test_tensors_come_out_under_hugging_face_names_in_hugging_face_order(tmp_path: Path, biases: bool) -> None:
    tensors = hugging_face_tensors(biases=biases)
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", tensors))
    assert set(checkpoint.names()) == set(tensors)
    for name, expected in tensors.items():
        assert checkpoint.shape(name) == expected.shape
        np.testing.assert_array_equal(checkpoint.tensor(name).numpy(), expected, err_msg=name)
    assert (checkpoint.spec.qkv_bias, checkpoint.spec.output_bias, checkpoint.spec.mlp_bias) == (biases, biases, biases)
    assert checkpoint.stored_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert checkpoint.files == (tmp_path / "m.gguf",)
    check_parameters(checkpoint, {name: tensor.shape for name, tensor in tensors.items()})


def test_tensors_equal_those_that_transformers_reads_from_the_same_file(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    def add_tokens(writer: gguf.GGUFWriter) -> None:
        writer.add_array("tokenizer.ggml.tokens", [f"t{index}" for index in range(VOCAB)])

    write(tmp_path / "m.gguf", hugging_face_tensors(), gguf.GGMLQuantizationType.Q8_0, add_tokens)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
    )
    model = LlamaForCausalLM(config)
    expected = load_gguf_checkpoint(tmp_path / "m.gguf", return_tensors=True, model_to_load=model)["tensors"]
    checkpoint = GgufCheckpoint(tmp_path / "m.gguf")
    assert set(checkpoint.names()) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.tensor(name), tensor), name


@pytest.mark.parametrize("kind", FORMAT_OF)
def test_stored_blocks_are_in_the_same_order_as_the_values(tmp_path: Path, kind: str) -> None:
    """Rows of queries and keys are as they were before the converter interleaved them, whatever they are stored as."""
    random = np.random.default_rng(7)
    shapes = {"attn_q": (HEADS * HEAD_DIM, 256), "attn_k": (KV_HEADS * HEAD_DIM, 256), "ffn_gate_exps": (3, 4, 256)}
    originals = {name: stored(random.normal(size=shape).astype(np.float32), kind) for name, shape in shapes.items()}

    def add(writer: gguf.GGUFWriter) -> None:
        for name, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS), ("ffn_gate_exps", 0)):
            rows = interleaved_rows(originals[name], heads) if heads else originals[name]
            writer.add_tensor(f"blk.5.{name}.weight", rows, raw_dtype=gguf.GGMLQuantizationType[kind])

    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", hugging_face_tensors(), change=add))
    for gguf_name, name in (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj")):
        blocks = checkpoint.stored(f"model.layers.5.{name}.weight")
        assert (blocks.format, blocks.shape) == (kind, shapes[gguf_name])
        np.testing.assert_array_equal(blocks.rows, originals[gguf_name])
        expected = values_of(originals[gguf_name], kind)
        np.testing.assert_array_equal(checkpoint.tensor(f"model.layers.5.{name}.weight").numpy(), expected)
    experts = checkpoint.tensor("blk.5.ffn_gate_exps.weight")
    assert experts.shape == (3, 4, 256)
    np.testing.assert_array_equal(experts.numpy(), values_of(originals["ffn_gate_exps"], kind).reshape(3, 4, 256))


def test_a_vector_in_a_block_format_is_one_row(tmp_path: Path) -> None:
    values = np.random.default_rng(8).normal(size=64).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0

    def add(name: str) -> Callable[[gguf.GGUFWriter], None]:
        return lambda writer: writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    tensors = hugging_face_tensors()
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", tensors, change=add("blk.5.ffn_norm.weight")))
    vector = checkpoint.tensor("model.layers.5.post_attention_layernorm.weight")
    np.testing.assert_allclose(vector.numpy(), values, atol=0.02)
    write(tmp_path / "q.gguf", tensors, change=add("blk.5.attn_q.bias"))
    with pytest.raises(CheckpointError, match=r"blk\.5\.attn_q\.bias is a vector stored as Q8_0"):
        open_checkpoint(tmp_path / "q.gguf")


def test_two_names_of_one_tensor_are_refused(tmp_path: Path) -> None:
    sinks = {"blk.0.attn_sinks.weight": np.ones(4, np.float32), "blk.0.attn_sinks": np.ones(4, np.float32)}
    write(tmp_path / "m.gguf", hugging_face_tensors() | sinks)
    with pytest.raises(CheckpointError, match=r"both blk\.0\.attn_sinks\.weight and blk\.0\.attn_sinks,"):
        open_checkpoint(tmp_path / "m.gguf")


def test_the_metadata_becomes_the_specification(tmp_path: Path) -> None:
    spec = open_checkpoint(write(tmp_path / "m.gguf", hugging_face_tensors())).spec
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.intermediate_size) == ("llama", 2, 64, 96)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (4, 2, 16, 40)
    assert (spec.max_position_embeddings, spec.rope.theta, spec.rope.rotary_dim) == (128, 5000.0, 16)
    assert spec.rope.scaling is RopeScaling.NONE
    assert spec.rope.frequency_factors is None
    assert spec.rms_norm_epsilon == pytest.approx(1e-5, rel=1e-6)
    assert (spec.tie_word_embeddings, spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (False, False, False, False)
    assert (spec.eos_token_ids, spec.bos_token_id, spec.sliding_window) == ({2}, 1, None)
    assert spec.dtype == "float32"


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16"), ("Q4_1", "float16")])
def test_the_dtype_is_that_of_most_values(tmp_path: Path, kind: str, dtype: str) -> None:
    write(tmp_path / "m.gguf", hugging_face_tensors(), gguf.GGMLQuantizationType[kind])
    assert open_checkpoint(tmp_path / "m.gguf").spec.dtype == dtype


def test_without_an_output_tensor_the_head_is_tied(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", hugging_face_tensors(tied=True)))
    assert checkpoint.spec.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.names()


def test_all_ids_that_end_a_generation_are_united(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("tokenizer.ggml.eot_token_id", 5)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 6)

    assert open_checkpoint(write(tmp_path / "m.gguf", hugging_face_tensors(), change=add)).spec.eos_token_ids == {
        2,
        5,
        6,
    }


def test_rope_frequency_factors_move_into_the_specification(tmp_path: Path) -> None:
    factors = np.linspace(1.0, 8.0, HEAD_DIM // 2, dtype=np.float32)
    tensors = hugging_face_tensors() | {"rope_freqs.weight": factors}
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", tensors))
    assert checkpoint.spec.rope.frequency_factors == tuple(factors.tolist())
    assert "rope_freqs.weight" not in checkpoint.names()


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.ones(3, np.float32), "it must be 8"),
        (np.zeros(8, np.float32), "positive numbers"),
        (np.full(8, np.nan, np.float32), "positive numbers"),
        (np.ones((2, 4), np.float32), "list of at most"),
    ],
)
def test_impossible_frequency_factors_are_refused(tmp_path: Path, factors: np.ndarray, message: str) -> None:
    write(tmp_path / "m.gguf", hugging_face_tensors() | {"rope_freqs.weight": factors})
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "m.gguf")


def test_linear_and_yarn_scaling_are_read(tmp_path: Path) -> None:
    def scaled(kind: str) -> Callable[[gguf.GGUFWriter], None]:
        def add(writer: gguf.GGUFWriter) -> None:
            writer.add_string("llama.rope.scaling.type", kind)
            writer.add_float32("llama.rope.scaling.factor", 4.0)
            writer.add_uint32("llama.rope.scaling.original_context_length", 32)

        return add

    tensors = hugging_face_tensors()
    linear = open_checkpoint(write(tmp_path / "l.gguf", tensors, change=scaled("linear"))).spec.rope
    assert (linear.scaling, linear.factor) == (RopeScaling.LINEAR, 4.0)
    yarn = open_checkpoint(write(tmp_path / "y.gguf", tensors, change=scaled("yarn"))).spec.rope
    assert (yarn.scaling, yarn.factor, yarn.original_max_position_embeddings) == (RopeScaling.YARN, 4.0, 32)
    assert yarn.attention_factor == pytest.approx(1.1386294)
    write(tmp_path / "u.gguf", tensors, change=scaled("longrope"))
    with pytest.raises(UnsupportedModel, match="'longrope'; Limelight knows none, linear, yarn, and longrope by its"):
        open_checkpoint(tmp_path / "u.gguf")


def test_sampling_settings_in_the_file_become_the_defaults(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 20)

    defaults = open_checkpoint(write(tmp_path / "m.gguf", hugging_face_tensors(), change=add)).sampling_defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.5, 20, None)


def test_a_per_layer_list_of_equal_values_is_one_value(tmp_path: Path) -> None:
    sizes = {"feed_forward_length": [MLP, MLP], "attention.head_count_kv": [KV_HEADS, KV_HEADS]}
    spec = open_checkpoint(write(tmp_path / "m.gguf", hugging_face_tensors(), **sizes)).spec
    assert (spec.intermediate_size, spec.num_kv_heads) == (MLP, KV_HEADS)
    write(tmp_path / "u.gguf", hugging_face_tensors(), feed_forward_length=[MLP, 2 * MLP])
    with pytest.raises(UnsupportedModel, match="differs between layers"):
        open_checkpoint(tmp_path / "u.gguf")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"block_count": 0}, "llama.block_count is 0; it must be an integer from 1"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"attention.head_count_kv": 3}, r"head_count_kv is 3; it must divide head_count \(4\)"),
        ({"embedding_length": 2**31}, "llama.embedding_length is 2147483648"),
        ({"attention.head_count": 2}, "attn_q.weight has 64 rows; .* make 32|rope.dimension_count"),
        ({"attention.head_count": 8, "rope.dimension_count": None}, "attn_k.weight has 32 rows"),
        ({"context_length": 0}, "llama.context_length is 0"),
        ({"feed_forward_length": [MLP] * 2000}, "a list must have one value for each of 1 to 1024 layers"),
        ({"expert_count": 5000}, "llama.expert_count is 5000; it must be an integer from 0 to 4096"),
    ],
)
def test_an_impossible_value_is_named_with_its_field(tmp_path: Path, sizes: dict[str, Any], message: str) -> None:
    write(tmp_path / "m.gguf", hugging_face_tensors(), **sizes)
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        open_checkpoint(tmp_path / "m.gguf")


def test_other_architectures_and_kinds_of_file_are_named(tmp_path: Path) -> None:
    tensors = hugging_face_tensors()
    write(tmp_path / "a.gguf", tensors, architecture="mamba")
    with pytest.raises(UnsupportedModel, match="'mamba'; Limelight runs GGUF files of the architectures llama, qwen2"):
        open_checkpoint(tmp_path / "a.gguf")
    write(tmp_path / "e.gguf", tensors, expert_count=8)
    with pytest.raises(UnsupportedModel, match="expert_count is 8"):
        open_checkpoint(tmp_path / "e.gguf")
    write(tmp_path / "t.gguf", tensors, change=lambda writer: writer.add_string("general.type", "adapter"))
    with pytest.raises(UnsupportedModel, match=r"general\.type is 'adapter'"):
        open_checkpoint(tmp_path / "t.gguf")


def test_a_file_without_an_embedding_is_no_language_model(tmp_path: Path) -> None:
    tensors = {name: value for name, value in hugging_face_tensors().items() if "embed" not in name}
    write(tmp_path / "m.gguf", tensors)
    with pytest.raises(CheckpointError, match=r"no two-dimensional token_embd\.weight"):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_tensor_without_a_hugging_face_name_is_reported_as_unused(tmp_path: Path) -> None:
    tensors = hugging_face_tensors() | {"blk.0.attn_rel_b.weight": np.ones(4, np.float32)}
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", tensors))
    required = {name: value.shape for name, value in hugging_face_tensors().items()}
    with pytest.raises(CheckpointError, match=r"1 unused: blk\.0\.attn_rel_b\.weight"):
        check_parameters(checkpoint, required)


@pytest.mark.model
def test_tensors_of_the_default_model_equal_those_of_the_gguf_package() -> None:
    path = embedded_model()
    assert path is not None
    checkpoint = GgufCheckpoint(path)
    spec = checkpoint.spec
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (30, 576, 9, 3)
    assert (spec.vocab_size, spec.max_position_embeddings, spec.tie_word_embeddings) == (49152, 8192, True)
    assert checkpoint.metadata["tokenizer.ggml.pre"] == "smollm"
    heads = {"attn_q": 9, "attn_k": 3}
    names = {gguf_name(name): name for name in checkpoint.names()}
    for tensor in GgufFile(path).tensors.values():
        if tensor.name.startswith("blk.") and not tensor.name.startswith(("blk.0.", "blk.29.")):
            continue  # the package needs half a minute for all of them
        content = np.memmap(path, np.uint8, "r", tensor.start, (tensor.shape[0], tensor.num_bytes // tensor.shape[0]))
        kind = gguf.GGMLQuantizationType[tensor.format.name]
        ours = checkpoint.tensor(names[tensor.name]).numpy()
        num_heads = heads.get(tensor.name.split(".")[-2])
        ours = interleaved_rows(ours, num_heads) if num_heads else ours
        expected = gguf.quants.dequantize(content[:2000], kind).reshape(-1, *tensor.shape[1:])
        np.testing.assert_array_equal(ours[:2000], expected, err_msg=tensor.name)
