"""An adapter's folder against the base model: what does not fit is named, all of it, before anything is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from limelight.errors import CheckpointError, ModelError, OutOfMemory, UnsupportedModel
from limelight.models.layers import ProjectionShape
from limelight.models.lora.adapter_file import AdapterFile
from limelight.models.lora.adapter_table import AdapterTable
from tests.models.lora.tiny_adapters import ATTENTION, random_matrices, save_adapter, settings_of
from tests.models.tiny_models import Rig, saved, tiny_llama

pytestmark = pytest.mark.usefixtures("one_torch_thread")
CPU = "cpu"
NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def projections(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProjectionShape, ...]:
    return Rig(saved(tiny_llama(), tmp_path_factory.mktemp("base"))).adaptable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_adapter(
        tmp_path / "adapter", random_matrices(tiny_llama(), ATTENTION, 4, 1), settings_of(4, 8, list(ATTENTION))
    )


def change(folder: Path, tensors: dict[str, torch.Tensor | None]) -> None:
    file = folder / "adapter_model.safetensors"
    merged: dict[str, Any] = {**load_file(file), **tensors}
    save_file({name: tensor for name, tensor in merged.items() if tensor is not None}, file)


def test_the_adaptable_projections_are_the_linear_layers(projections: tuple[ProjectionShape, ...]) -> None:
    assert projections[0] == (
        tuple(f"model.layers.0.self_attn.{name}_proj" for name in "qkv"),
        (32, 16, 16),
        32,
    )
    assert [len(shape.names) for shape in projections] == [3, 1, 2, 1] * 2 + [1]
    assert projections[-1].names == ("lm_head",)


def test_a_tied_head_cannot_be_adapted(tmp_path: Path) -> None:
    model = tiny_llama(tie_word_embeddings=True)
    rig = Rig(saved(model, tmp_path / "base"))
    assert "lm_head" not in {name for shape in rig.adaptable for name in shape.names}
    folder = save_adapter(tmp_path / "a", random_matrices(model, ("lm_head",), 4, 1), settings_of(4, 8, ["lm_head"]))
    with pytest.raises(CheckpointError, match=r"lm_head\.lora_A\.weight belongs to no linear layer"):
        AdapterFile(folder, rig.adaptable, 64)


def test_size_and_rank(folder: Path, projections: tuple[ProjectionShape, ...]) -> None:
    file = AdapterFile(folder, projections, 64)
    weights = file.read(torch.float32, CPU)
    assert weights.rank == 4
    stored = load_file(folder / "adapter_model.safetensors").values()
    assert weights.num_bytes == 4 * sum(tensor.numel() for tensor in stored)
    held = [[product.down, *(part.up for part in product.parts)] for product in weights.products.values()]
    assert sum(tensor.nbytes for tensors in held for tensor in tensors) == weights.num_bytes


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({NAME: None}, r"layers\.0\.self_attn\.q_proj\.lora_A\.weight is missing"),
        ({NAME: torch.zeros(4, 31)}, r"is \[4, 31\], expected \[4, 32\]"),
        ({NAME: torch.zeros(5, 32)}, r"is \[5, 32\], expected \[4, 32\]"),
        ({NAME: torch.zeros(4, 32, 1)}, r"expected \[4, 32\]"),
        ({NAME: torch.zeros(4, 32, dtype=torch.int8)}, "stored as I8"),
        ({NAME.replace("q_proj", "x_proj"): torch.zeros(1)}, "x_proj.* belongs to no linear layer"),
        ({NAME.replace("lora_A", "lora_C"): torch.zeros(1)}, "lora_C.* belongs to no linear layer"),
        ({NAME.replace("base_model.model.", ""): torch.zeros(1)}, "belongs to no linear layer"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(1)}, "lora_embedding_A"),
        ({NAME.replace("self_attn.q_proj", "mlp.up_proj"): torch.zeros(4, 32)}, "does not target"),
        ({NAME.replace("lora_A.weight", "lora_magnitude_vector"): torch.zeros(1)}, "lora_magnitude_vector"),
    ],
)
def test_what_does_not_fit_is_named(
    folder: Path, projections: tuple[ProjectionShape, ...], tensors: dict[str, Any], message: str
) -> None:
    change(folder, tensors)
    with pytest.raises(CheckpointError, match=message):
        AdapterFile(folder, projections, 64)


def test_copies_of_the_base_models_tables_are_passed_over_if_they_have_its_shape(
    folder: Path, projections: tuple[ProjectionShape, ...]
) -> None:
    copies = ("base_model.model.lm_head.base_layer.weight", "base_model.model.model.embed_tokens.weight")
    change(folder, {name: torch.full((97, 32), torch.nan) for name in copies})
    assert AdapterFile(folder, projections, 64).read(torch.float32, CPU).rank == 4
    change(folder, {copies[1]: torch.zeros(98, 32)})  # a vocabulary of another size
    with pytest.raises(CheckpointError, match="embed_tokens"):
        AdapterFile(folder, projections, 64)


def test_every_mismatch_is_in_one_message(folder: Path, projections: tuple[ProjectionShape, ...]) -> None:
    change(folder, {NAME: torch.zeros(4, 31), NAME.replace("q_proj", "k_proj"): None, "stranger": torch.zeros(1)})
    with pytest.raises(CheckpointError) as caught:
        AdapterFile(folder, projections, 64)
    assert all(word in caught.value.message for word in ("[4, 31]", "k_proj", "stranger"))


def test_a_module_that_the_settings_name_and_the_file_lacks_is_missing(
    folder: Path, projections: tuple[ProjectionShape, ...]
) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(settings_of(4, 8, [*ATTENTION, "up_proj"])))
    with pytest.raises(CheckpointError, match=r"mlp\.up_proj\.lora_A\.weight is missing"):
        AdapterFile(folder, projections, 64)


def test_ranks_are_bounded(folder: Path, projections: tuple[ProjectionShape, ...]) -> None:
    with pytest.raises(UnsupportedModel, match=r"rank .* is 4.*at most 3; raise max_lora_rank"):
        AdapterFile(folder, projections, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_values_that_would_spoil_a_step_are_refused(
    folder: Path, projections: tuple[ProjectionShape, ...], value: float
) -> None:
    matrix = torch.zeros(4, 32)
    matrix[2, 3] = value
    change(folder, {NAME: matrix})
    with pytest.raises(CheckpointError, match="not finite"):
        AdapterFile(folder, projections, 64).read(torch.float16, CPU)


def test_pickled_weights_are_never_opened(folder: Path, projections: tuple[ProjectionShape, ...]) -> None:
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds no adapter_model\.safetensors"):
        AdapterFile(folder, projections, 64)
    (folder / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(CheckpointError, match="can run code"):
        AdapterFile(folder, projections, 64)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_broken_file_is_refused(folder: Path, projections: tuple[ProjectionShape, ...], content: bytes) -> None:
    (folder / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
        AdapterFile(folder, projections, 64)


def test_an_adapter_that_does_not_fit_into_memory_is_refused_before_it_is_read(
    folder: Path, projections: tuple[ProjectionShape, ...]
) -> None:
    table = AdapterTable(projections, "float32", CPU, 64, lambda: 5000)
    with pytest.raises(OutOfMemory, match="free"):
        table.read(str(folder), lambda what, fraction: None)
    assert AdapterTable(projections, "float32", CPU, 64, lambda: 50_000).read(str(folder), lambda *_: None)


@pytest.mark.parametrize("path", ["hf://", "hf://../x", "hf://a/b:Q4_K_M", "hf://a/b/c", "/nowhere/at/all", ""])
def test_names_that_lead_nowhere_are_refused(path: str, projections: tuple[ProjectionShape, ...]) -> None:
    table = AdapterTable(projections, "float32", CPU, 64, lambda: None)
    with pytest.raises(CheckpointError):
        table.read(path, lambda what, fraction: None)


def test_a_file_is_no_folder(folder: Path, projections: tuple[ProjectionShape, ...]) -> None:
    table = AdapterTable(projections, "float32", CPU, 64, lambda: None)
    with pytest.raises(CheckpointError, match="no folder"):
        table.read(str(folder / "adapter_config.json"), lambda what, fraction: None)


def test_routers_can_be_adapted_and_experts_cannot(tmp_path: Path) -> None:
    projections = (ProjectionShape(("model.layers.0.mlp.gate",), (4,), 32),)
    router = {"model.layers.0.mlp.gate": (torch.ones(2, 32), torch.ones(4, 2))}
    folder = save_adapter(tmp_path / "router", router, settings_of(2, 4, ["gate"]))
    assert AdapterFile(folder, projections, 64).read(torch.float32, CPU).rank == 2
    expert = {"model.layers.0.mlp.experts.3.up_proj": (torch.ones(2, 32), torch.ones(8, 2))}
    folder = save_adapter(tmp_path / "experts", {**router, **expert}, settings_of(2, 4, "all-linear"))
    with pytest.raises(CheckpointError, match=r"experts\.3\.up_proj.*experts and embeddings take none"):
        AdapterFile(folder, projections, 64)
