"""The files of a repository that a model consists of, and repositories without one."""

import pytest

from limelight.errors import CheckpointError
from limelight.models.hub.needed_files import MAX_TEXT_BYTES, MAX_TEXTS, needed_adapter_files, needed_files


def needed(*paths: str, selection: str | None = None, index: tuple[str, ...] = ()) -> set[str]:
    return set(needed_files(dict.fromkeys(paths, 1), "maker/model", selection, lambda: index).files)


def test_configuration_tokenizer_and_templates_come_along() -> None:
    text = {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
        "tokenizer.model", "chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja",
    }  # fmt: skip
    assert needed(*text, "model.safetensors") == {*text, "model.safetensors"}


@pytest.mark.parametrize(
    "path",
    [
        "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "original/params.json",
        "consolidated.safetensors", "consolidated-00001-of-00002.safetensors", "metal/model.bin", "README.md",
        "modeling_custom.py", "training_args.bin", "adapter_model.safetensors", "model.fp16.safetensors", "model.gguf",
        "openvino/openvino_model.xml", "images/a.jinja", "additional_chat_templates/a/b.jinja",
    ],
)  # fmt: skip
def test_everything_else_stays(path: str) -> None:
    assert needed("config.json", "model.safetensors", path) == {"config.json", "model.safetensors"}


def test_a_json_file_of_unlikely_size_stays() -> None:
    sizes = {"config.json": 1, "model.safetensors": 1, "log.json": MAX_TEXT_BYTES + 1}
    assert "log.json" not in needed_files(sizes, "maker/model", None, tuple).files


def test_a_heap_of_json_files_is_not_fetched() -> None:
    heap = [f"results_{number}.json" for number in range(MAX_TEXTS)]
    with pytest.raises(CheckpointError, match="has 257 JSON and template files"):
        needed("config.json", "model.safetensors", *heap)


def test_a_gguf_file_beside_safetensors_is_fetched_when_it_is_asked_for() -> None:
    assert needed("config.json", "model.safetensors", "m-Q8_0.gguf", selection="q8_0") == {"m-Q8_0.gguf"}


def test_the_index_decides_between_shards() -> None:
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    listed = ("config.json", "model.safetensors.index.json", *shards, "model.fp16-00001-of-00001.safetensors")
    assert needed(*listed, index=shards) == {"config.json", "model.safetensors.index.json", *shards}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("config.json", "pytorch_model.bin"), "has only pickled weights .*nothing was downloaded"),
        (("config.json", "README.md"), "has neither safetensors nor GGUF files"),
        ((), "has neither safetensors nor GGUF files"),
        (("adapter_config.json", "adapter_model.safetensors"), "is a LoRA adapter, no whole model"),
        (("model.safetensors",), r"has no config\.json"),
        (("config.json", "a.safetensors", "b.safetensors"), r"has several safetensors files \(a.*, b.*\) but no model"),
        (("config.json", "model.safetensors.index.json", "a.safetensors"), "lacks files that its .* names: gone"),
        (("config.json", "mmproj-F16.gguf"), "has neither safetensors nor GGUF"),
    ],
)
def test_a_repository_without_a_model_is_refused_with_the_reason(paths: tuple[str, ...], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        needed(*paths, index=("gone.safetensors",))


def test_a_pickled_adapter_is_refused() -> None:
    with pytest.raises(CheckpointError, match="holds its adapter only pickled"):
        needed_adapter_files({"adapter_config.json": 1, "adapter_model.bin": 1}, "maker/model")
