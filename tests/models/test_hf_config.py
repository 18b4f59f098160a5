import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import CheckpointError, ModelError, UnsupportedModel
from limelight.models.hf_config import read_sampling_defaults, read_spec
from limelight.models.spec import RopeScaling

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 200,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "torch_dtype": "bfloat16",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def write(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A folder with a small Llama configuration; a change to `...` leaves the field out."""
    config = {name: value for name, value in (LLAMA | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_a_llama_configuration_becomes_a_specification(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path))
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.intermediate_size) == ("llama", 2, 64, 96)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (4, 2, 16, 200)
    assert (spec.max_position_embeddings, spec.rms_norm_epsilon, spec.dtype) == (512, 1e-5, "bfloat16")
    assert (spec.rope.theta, spec.rope.rotary_dim, spec.rope.scaling) == (5000.0, 16, RopeScaling.NONE)
    assert (spec.qkv_bias, spec.mlp_bias, spec.tie_word_embeddings) == (False, False, False)
    assert (spec.sliding_window, spec.activation) == (None, "silu")
    assert (spec.eos_token_ids, spec.bos_token_id) == ({2}, 1)
    assert spec.source == str(tmp_path / "config.json")


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_scaling": None},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_scaling": {"type": "dynamic", "rope_type": "dynamic", "factor": 4.0}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {k: v for k, v in LLAMA3.items() if not k.startswith("original")}},
        {"rope_scaling": LLAMA3, "original_max_position_embeddings": 64},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "truncate": False}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 0.7}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}, "rope_theta": ...},
        {"rope_parameters": LLAMA3 | {"rope_theta": 777.0}, "rope_theta": ...},
        {"rope_theta": ...},
    ],
)
def test_rope_settings_mean_what_transformers_understands(tmp_path: Path, family: str, rope: dict[str, Any]) -> None:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    write(tmp_path, model_type=family, architectures=..., **rope)
    ours = read_spec(tmp_path).rope
    config = AutoConfig.from_pretrained(tmp_path)
    kind = config.rope_parameters["rope_type"]
    _, attention_factor = ROPE_INIT_FUNCTIONS[kind](config) if kind != "default" else (None, 1.0)
    theirs = config.rope_parameters  # the call above may still change them
    kind = "none" if kind == "default" else kind
    assert (ours.scaling, ours.theta, ours.rotary_dim) == (kind, theirs["rope_theta"], 16)
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "truncate"):
        if name in theirs:
            assert getattr(ours, name) == theirs[name], name
    if kind == "yarn":
        assert (ours.beta_fast, ours.beta_slow) == (theirs.get("beta_fast", 32), theirs.get("beta_slow", 1))
    assert ours.attention_factor == pytest.approx(attention_factor)


def test_the_longest_context_counts_what_the_scaling_adds(tmp_path: Path) -> None:
    def longest(rope_scaling: dict[str, Any] | None) -> int:
        return read_spec(write(tmp_path, rope_scaling=rope_scaling)).longest_context

    assert longest(None) == 512
    assert longest({"type": "linear", "factor": 4}) == 2048
    assert longest({"type": "dynamic", "factor": 1.5}) == 768
    assert longest(LLAMA3) == 512
    assert longest({"type": "yarn", "factor": 16, "original_max_position_embeddings": 128}) == 2048


@pytest.mark.parametrize(
    ("rope_scaling", "message"),
    [
        ({"type": "linear", "factor": 0.5}, "rope_scaling: factor is 0.5; it must be a number from 1"),
        ({"type": "linear"}, "rope_scaling: factor is missing"),
        ({"type": "linear", "factor": "2"}, "factor is '2'"),
        ({"type": "linear", "factor": float("nan")}, "factor is nan"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "high_freq_factor is 1.0; it must be above low_freq_factor"),
        (LLAMA3 | {"original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
        ([1], r"rope_scaling is \[1\]; it must be an object"),
        ({"type": 3}, "type is 3; it must be a string"),
        ({"type": "yarn", "factor": 2.0, "rope_theta": 1}, "rope_theta is 1.0; it must be above 1 for yarn"),
    ],
)
def test_impossible_rope_settings_are_refused(tmp_path: Path, rope_scaling: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_spec(write(tmp_path, rope_scaling=rope_scaling))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'; Limelight runs the architectures llama, mistral"),
        ({"model_type": ...}, r"model_type is missing \(architectures: \['LlamaForCausalLM'\]\)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "needs a ...ForCausalLM model"),
        (
            {"rope_scaling": {"rope_type": "proportional", "factor": 2.0}},
            "rope type is 'proportional'; Limelight knows default",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "quantised with 'bitsandbytes'; Limelight reads gptq",
        ),
    ],
)
def test_what_limelight_does_not_run_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_spec(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "hidden_size is missing; it must be an integer from 1 to 1048576"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": 2**70}, "hidden_size is 1180591620717411303424"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0"),
        ({"hidden_size": True}, "hidden_size is True"),
        (
            {"hidden_size": 66},
            r"hidden_size is 66; without head_dim, it must be a multiple of num_attention_heads \(4\)",
        ),
        ({"head_dim": 15}, "head_dim is 15; it must be an even number"),
        (
            {"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2}},
            "rope type is 'dynamic'; .* only 2 dimensions",
        ),
        ({"num_attention_heads": 64, "num_key_value_heads": 2}, "head_dim is 1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide num_attention_heads, which is 4"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        ({"eos_token_id": 200}, "eos_token_id is 200; it must hold token ids from 0 to 199"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id is"),
        ({"model_type": ["llama"]}, "model_type is"),
    ],
)
def test_an_impossible_value_is_named_with_file_and_field(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_spec(write(tmp_path, **changes))
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_head_dim_may_be_given_null_or_absent(tmp_path: Path) -> None:
    assert read_spec(write(tmp_path, head_dim=32)).head_dim == 32
    assert read_spec(write(tmp_path, head_dim=None)).head_dim == 16
    assert read_spec(write(tmp_path, hidden_size=66, head_dim=32)).head_dim == 32


def test_absent_fields_take_the_defaults_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoConfig

    optional = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "torch_dtype")
    for family in ("llama", "mistral"):
        changes = dict.fromkeys(optional, ...) | {"architectures": ..., "model_type": family, "num_attention_heads": 16}
        ours = read_spec(write(tmp_path, **changes))
        theirs = AutoConfig.from_pretrained(tmp_path)
        assert ours.num_kv_heads == theirs.num_key_value_heads
        assert ours.max_position_embeddings == theirs.max_position_embeddings
        assert ours.rms_norm_epsilon == theirs.rms_norm_eps
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
        assert ours.sliding_window == getattr(theirs, "sliding_window", None)
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings
        assert ours.eos_token_ids == {theirs.eos_token_id}
        assert ours.bos_token_id == theirs.bos_token_id
        assert ours.dtype == "float32"


def test_the_layout_that_transformers_5_saves_is_read(tmp_path: Path) -> None:
    import torch
    from transformers import MistralConfig

    config = MistralConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "yarn", "rope_theta": 99.0, "factor": 2.0},
        sliding_window=77,
        tie_word_embeddings=True,
        eos_token_id=[3, 4],
        dtype=torch.float16,
    )
    config.save_pretrained(tmp_path)
    assert "rope_parameters" in json.loads((tmp_path / "config.json").read_text())
    spec = read_spec(tmp_path)
    assert (spec.architecture, spec.head_dim, spec.num_kv_heads, spec.num_layers) == ("mistral", 32, 1, 3)
    assert (spec.sliding_window, spec.tie_word_embeddings, spec.dtype) == (77, True, "float16")
    assert (spec.rope.scaling, spec.rope.theta, spec.rope.factor) == (RopeScaling.YARN, 99.0, 2.0)
    assert spec.eos_token_ids == {3, 4}


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": ..., "dtype": "float32"}, "float32"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "auto"}, "float16"),
        ({"torch_dtype": ...}, "float16"),
        ({"torch_dtype": None}, "float16"),
    ],
)
def test_the_dtype_is_read_from_either_key_or_else_taken_from_the_weights(
    tmp_path: Path, changes: dict[str, Any], dtype: str
) -> None:
    assert read_spec(write(tmp_path, **changes), stored_dtype="float16").dtype == dtype


def test_biases_and_windows_count_only_in_families_that_have_them(tmp_path: Path) -> None:
    fields = {"attention_bias": True, "mlp_bias": True, "sliding_window": 128}
    llama = read_spec(write(tmp_path, **fields))
    assert (llama.qkv_bias, llama.mlp_bias, llama.sliding_window) == (True, True, None)
    mistral = read_spec(write(tmp_path, **fields, model_type="mistral", architectures=["MistralForCausalLM"]))
    assert (mistral.qkv_bias, mistral.mlp_bias, mistral.sliding_window) == (False, False, 128)
    assert read_spec(write(tmp_path, sliding_window=None, model_type="mistral")).sliding_window is None


@pytest.mark.parametrize(
    ("own", "generation", "united"),
    [
        (2, None, {2}),
        ([2, 3], {"eos_token_id": 4}, {2, 3, 4}),
        (2, {"eos_token_id": [5, 6]}, {2, 5, 6}),
        (None, {"eos_token_id": 7}, {7}),
        (None, None, set()),
        (2, {"eos_token_id": None}, {2}),
    ],
)
def test_ids_that_end_a_generation_are_united(
    tmp_path: Path, own: object, generation: dict[str, Any] | None, united: set[int]
) -> None:
    assert read_spec(write(tmp_path, generation, eos_token_id=own)).eos_token_ids == united


def test_recommended_sampling_settings_are_read(tmp_path: Path) -> None:
    assert read_sampling_defaults(write(tmp_path)).params().temperature == 1.0
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1, "max_new_tokens": 7}
    defaults = read_sampling_defaults(write(tmp_path, generation | {"transformers_version": "5"}))
    assert (defaults.temperature, defaults.top_p, defaults.top_k, defaults.min_p) == (0.6, 0.9, 50, None)
    assert (defaults.repetition_penalty, defaults.max_tokens) == (1.1, 7)
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature is -1"):
        read_sampling_defaults(write(tmp_path, {"temperature": -1}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[]", "holds a JSON list"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_broken_configuration_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_spec(tmp_path)


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_spec(tmp_path)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "yarn", "llama3", "x" * 999])
ROPE_NAMES = st.sampled_from(["type", "factor", "rope_theta", "mscale", "beta_fast", "low_freq_factor", "truncate"])
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(ROPE_NAMES, SCALARS, max_size=4)
NAMES = [*LLAMA, "rope_scaling", "rope_parameters", "head_dim", "eos_token_id", "quantization_config", "hidden_act"]


@given(changes=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3))
@settings(max_examples=200)
def test_any_values_give_a_specification_or_a_model_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    write(tmp_path, **changes)
    with contextlib.suppress(ModelError):
        spec = read_spec(tmp_path)
        assert spec.num_heads % spec.num_kv_heads == 0
        assert spec.rope.factor >= 1.0
