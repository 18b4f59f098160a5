"""How the parameters of experts are read; what they compute is compared with transformers family by family."""

import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from limelight.kernels.interface import ExpertWeights
from limelight.kernels.reference import ReferenceExperts, ReferenceKernels
from limelight.models.experts import Experts, expert_shapes
from limelight.models.layers import LayerBuilder
from tests.models.families.tiny_families import TINY_FAMILIES
from tests.models.tiny_models import saved

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class PackingWatched(ReferenceKernels):
    packed: ReferenceExperts

    def pack_experts(self, weights: ExpertWeights) -> ReferenceExperts:
        self.packed = super().pack_experts(weights)
        return self.packed


@pytest.mark.parametrize(("architecture", "router"), [("qwen2_moe", "mlp.gate"), ("gpt_oss", "mlp.router")])
def test_exactly_the_parameters_of_a_layer_are_read_and_none_is_kept_beside_its_packed_form(
    architecture: str, router: str, tmp_path: Path
) -> None:
    checkpoint = saved(TINY_FAMILIES[architecture](), tmp_path)
    read: dict[str, Any] = {}
    alive_with_up: list[bool] = []

    def watched(name: str) -> torch.Tensor:
        if name.endswith("experts.up_proj.weight"):
            alive_with_up.append(read[name.replace("up_proj", "gate_proj")]() is not None)
        tensor = checkpoint.tensor(name).clone()
        read[name] = weakref.ref(tensor)
        return tensor

    kernels = PackingWatched("cpu")
    parameters = Mock(plain=watched, matrix=watched)
    Experts(LayerBuilder(checkpoint.spec, 1, parameters, kernels), router=router)
    assert set(read) == {f"model.layers.1.{name}" for name in expert_shapes(checkpoint.spec, router)}
    assert alive_with_up == [False]
    prefix = "model.layers.1.mlp.experts"
    gate, up = kernels.packed.gate_up.chunk(2, dim=1)
    assert torch.equal(gate, checkpoint.tensor(f"{prefix}.gate_proj.weight"))
    assert torch.equal(up, checkpoint.tensor(f"{prefix}.up_proj.weight"))
    assert torch.equal(kernels.packed.down, checkpoint.tensor(f"{prefix}.down_proj.weight"))
