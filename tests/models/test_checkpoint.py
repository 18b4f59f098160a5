import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.checkpoint import check_parameters, open_checkpoint

INDEX = "model.safetensors.index.json"


def save_model(folder: Path, shard_size: str = "5GB", **changes: object) -> dict[str, torch.Tensor]:
    """Save a tiny random model with transformers and return its parameters."""
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=2,
        **changes,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return dict(model.named_parameters())


def shapes(parameters: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}


def edit(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Rewrite the single safetensors file; None removes a tensor."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()} | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")


@pytest.mark.parametrize("shard_size", ["5GB", "12KB"])
def test_single_and_sharded_folders_give_what_transformers_saved(tmp_path: Path, shard_size: str) -> None:
    parameters = save_model(tmp_path, shard_size)
    checkpoint = open_checkpoint(tmp_path)
    assert (len(checkpoint.files) > 1) == (shard_size == "12KB")
    assert set(checkpoint.names()) == set(parameters)
    for name, tensor in parameters.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert torch.equal(checkpoint.tensor(name), tensor)
    assert checkpoint.stored_bytes == sum(tensor.nbytes for tensor in parameters.values())
    assert checkpoint.spec.num_layers == 2
    check_parameters(checkpoint, shapes(parameters))


def test_biases_are_read(tmp_path: Path) -> None:
    parameters = save_model(tmp_path, attention_bias=True, mlp_bias=True)
    assert "model.layers.0.self_attn.q_proj.bias" in parameters
    check_parameters(open_checkpoint(tmp_path), shapes(parameters))


def test_missing_misshapen_and_unused_tensors_are_named_in_one_message(tmp_path: Path) -> None:
    parameters = save_model(tmp_path)
    edit(
        tmp_path,
        {
            "model.norm.weight": None,
            "lm_head.weight": torch.zeros(47, 32),
            "model.layers.0.self_attn.q_proj.bias": torch.ones(32),
            "model.layers.1.self_attn.q_proj.bias": torch.zeros(32),
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
        },
    )
    with pytest.raises(CheckpointError) as caught:
        check_parameters(open_checkpoint(tmp_path), shapes(parameters))
    message = str(caught.value)
    assert "1 missing: model.norm.weight" in message
    assert "1 misshapen: lm_head.weight is [47, 32], expected [48, 32]" in message
    assert message.endswith("1 unused: model.layers.0.self_attn.q_proj.bias")


def test_a_bias_of_zeros_that_the_model_does_not_have_is_let_be(tmp_path: Path) -> None:
    parameters = save_model(tmp_path)
    edit(tmp_path, {f"model.layers.{layer}.self_attn.q_proj.bias": torch.zeros(32) for layer in range(2)})
    check_parameters(open_checkpoint(tmp_path), shapes(parameters))


def test_at_most_ten_tensors_of_a_kind_are_spelled_out(tmp_path: Path) -> None:
    parameters = save_model(tmp_path)
    required = shapes(parameters) | {f"extra.{index}": (1,) for index in range(14)}
    with pytest.raises(CheckpointError, match=r"14 missing: extra\.0, .*extra\.9 and 4 more$"):
        check_parameters(open_checkpoint(tmp_path), required)


class TestTiedHead:
    def test_one_that_is_not_stored_is_not_missed(self, tmp_path: Path) -> None:
        parameters = save_model(tmp_path, tie_word_embeddings=True)
        checkpoint = open_checkpoint(tmp_path)
        assert checkpoint.spec.tie_word_embeddings
        assert "lm_head.weight" not in checkpoint.names()
        check_parameters(checkpoint, shapes(parameters))

    def test_an_equal_copy_is_ignored(self, tmp_path: Path) -> None:
        parameters = save_model(tmp_path, tie_word_embeddings=True)
        edit(tmp_path, {"lm_head.weight": parameters["model.embed_tokens.weight"].detach().clone()})
        checkpoint = open_checkpoint(tmp_path)
        assert checkpoint.spec.tie_word_embeddings
        check_parameters(checkpoint, shapes(parameters))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_another_head_is_used_as_transformers_does(self, tmp_path: Path, dtype: torch.dtype) -> None:
        parameters = save_model(tmp_path, tie_word_embeddings=True)
        head = torch.full((48, 32), 0.5, dtype=dtype)
        edit(tmp_path, {"lm_head.weight": head})
        checkpoint = open_checkpoint(tmp_path)
        assert not checkpoint.spec.tie_word_embeddings
        check_parameters(checkpoint, shapes(parameters) | {"lm_head.weight": (48, 32)})
        theirs = LlamaForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(theirs.lm_head.weight, checkpoint.tensor("lm_head.weight").float())

    def test_stored_under_the_heads_name_only_it_is_the_embedding(self, tmp_path: Path) -> None:
        parameters = save_model(tmp_path, tie_word_embeddings=True)
        table = parameters["model.embed_tokens.weight"].detach().clone()
        edit(tmp_path, {"model.embed_tokens.weight": None, "lm_head.weight": table})
        checkpoint = open_checkpoint(tmp_path)
        assert checkpoint.spec.tie_word_embeddings
        check_parameters(checkpoint, shapes(parameters))
        assert torch.equal(checkpoint.tensor("model.embed_tokens.weight"), table)

    def test_an_untied_head_that_is_missing_is_named(self, tmp_path: Path) -> None:
        parameters = save_model(tmp_path)
        edit(tmp_path, {"lm_head.weight": None})
        with pytest.raises(CheckpointError, match=r"1 missing: lm_head\.weight$"):
            check_parameters(open_checkpoint(tmp_path), shapes(parameters))


def test_without_a_dtype_in_the_configuration_that_of_the_embedding_counts(tmp_path: Path) -> None:
    save_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    edit(tmp_path, {"model.embed_tokens.weight": torch.zeros(48, 32, dtype=torch.bfloat16)})
    assert open_checkpoint(tmp_path).spec.dtype == "bfloat16"


def test_a_tensor_of_integers_is_refused_when_it_is_read(tmp_path: Path) -> None:
    save_model(tmp_path)
    edit(tmp_path, {"model.norm.weight": torch.zeros(32, dtype=torch.int8)})
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is stored as I8"):
        open_checkpoint(tmp_path).tensor("model.norm.weight")


class TestBrokenFolder:
    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        save_model(tmp_path, "12KB")
        sorted(tmp_path.glob("*.safetensors"))[1].unlink()
        with pytest.raises(CheckpointError, match=r"model-00002-of-\d+\.safetensors, which .* lists, is not in"):
            open_checkpoint(tmp_path)

    @pytest.mark.parametrize("keep", [0, 5, 100, -1])
    def test_a_truncated_file_is_named(self, tmp_path: Path, keep: int) -> None:
        save_model(tmp_path)
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match=r"model\.safetensors is not a complete safetensors file"):
            open_checkpoint(tmp_path)

    def test_shards_without_an_index_are_refused(self, tmp_path: Path) -> None:
        save_model(tmp_path, "12KB")
        (tmp_path / INDEX).unlink()
        with pytest.raises(CheckpointError, match=r"holds shards but no model\.safetensors\.index\.json"):
            open_checkpoint(tmp_path)

    def test_an_index_that_misplaces_a_tensor_is_refused(self, tmp_path: Path) -> None:
        save_model(tmp_path, "12KB")
        index = json.loads((tmp_path / INDEX).read_text())
        places = index["weight_map"]
        places["model.embed_tokens.weight"] = next(
            name for name in places.values() if name != places["model.embed_tokens.weight"]
        )
        (tmp_path / INDEX).write_text(json.dumps(index))
        with pytest.raises(CheckpointError, match="which does not hold it"):
            open_checkpoint(tmp_path)

    @pytest.mark.parametrize(
        "file_name",
        [
            "../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..\\model.safetensors",
            "C:\\model.safetensors", "C:model.safetensors", "a\x00.safetensors", "pytorch_model.bin", "..", "", 3, None,
        ],
    )  # fmt: skip
    def test_an_index_cannot_lead_out_of_the_folder(self, tmp_path: Path, file_name: object) -> None:
        folder = tmp_path / "inner"
        save_model(folder)
        (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": file_name}}))
        with pytest.raises(CheckpointError, match=r"must be a \.safetensors file in the same folder"):
            open_checkpoint(folder)

    @pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
    def test_an_index_without_a_map_is_refused(self, tmp_path: Path, content: str) -> None:
        save_model(tmp_path)
        (tmp_path / INDEX).write_text(content)
        with pytest.raises(CheckpointError, match="has no weight_map"):
            open_checkpoint(tmp_path)

    def test_pickled_weights_are_refused_unopened(self, tmp_path: Path) -> None:
        save_model(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
        with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model\.bin\).*save_pretrained"):
            open_checkpoint(tmp_path)

    def test_a_folder_without_weights_is_refused(self, tmp_path: Path) -> None:
        save_model(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors file"):
            open_checkpoint(tmp_path)
        (tmp_path / "m.gguf").touch()
        with pytest.raises(CheckpointError, match=r"holds no safetensors but m\.gguf; give the path of that file"):
            open_checkpoint(tmp_path)

    def test_several_files_without_an_index_are_refused_and_one_of_any_name_is_read(self, tmp_path: Path) -> None:
        parameters = save_model(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
        assert set(open_checkpoint(tmp_path).names()) == set(parameters)
        save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
        with pytest.raises(CheckpointError, match="several safetensors files"):
            open_checkpoint(tmp_path)

    def test_a_tensor_in_two_shards_is_refused(self, tmp_path: Path) -> None:
        save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
        save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "y.safetensors")
        save_model(tmp_path / "config")
        (tmp_path / "config" / "config.json").rename(tmp_path / "config.json")
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}))
        with pytest.raises(CheckpointError, match="a is stored twice"):
            open_checkpoint(tmp_path)


def test_a_path_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "nothing")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"is not a \.gguf file; for safetensors, give the folder"):
        open_checkpoint(tmp_path / "model.safetensors")
