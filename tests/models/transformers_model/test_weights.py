"""Weights that transformers loads: complete, or an error that names them, and silent."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from limelight.errors import CheckpointError
from limelight.kernels.reference import ReferenceKernels
from limelight.models.precision import Precision
from limelight.models.transformers_model.source import TransformersSource
from tests.models.tiny_models import Rig, tiny_named

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_missing_and_left_over_tensors_are_named(tmp_path: Path) -> None:
    tiny_named("GPT2Config").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.0.extra.weight"] = tensors.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        Rig(TransformersSource(tmp_path))
    assert "1 missing: transformer.h.1.mlp.c_fc.weight" in caught.value.message
    assert "1 unexpected: transformer.h.0.extra.weight" in caught.value.message


def test_misshapen_tensors_are_named(tmp_path: Path) -> None:
    tiny_named("GPT2Config").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "n_inner": 40}))
    with pytest.raises(CheckpointError, match=r"mismatched: transformer\.h\.0\.mlp\.c_fc\.bias"):
        Rig(TransformersSource(tmp_path))


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    tiny_named("GPT2Config").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights"):
        TransformersSource(tmp_path)


def test_loading_says_nothing_and_changes_nothing_of_the_host(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_named("GPT2Config").save_pretrained(tmp_path)
    capfd.readouterr()
    log = logging.getLogger("transformers")
    before = (log.level, [list(handler.filters) for handler in log.handlers], torch.get_default_dtype())
    fractions: list[float | None] = []
    source = TransformersSource(tmp_path)
    kernels = ReferenceKernels("cpu")
    source.load(kernels, Precision.uniform("bfloat16"), 128, lambda what, fraction: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert (log.level, [list(handler.filters) for handler in log.handlers], torch.get_default_dtype()) == before
    assert torch.is_grad_enabled()
    assert capfd.readouterr() == ("", "")
