"""What a folder of sentence-transformers says about embeddings."""

import json
from pathlib import Path
from typing import Any

import pytest

from limelight.embeddings import EmbeddingSettings, pooled_states
from limelight.errors import CheckpointError, InvalidRequest, UnsupportedField
from limelight.generation import Pooling
from limelight.models.pooling import embedding_settings

PREFIX = "sentence_transformers.models."


def save(folder: Path, modules: list[str] | None = None, pooling: dict[str, Any] | None = None) -> EmbeddingSettings:
    if modules is not None:
        described = [{"idx": number, "type": PREFIX + kind} for number, kind in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(described))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return embedding_settings(folder, 16)


def test_without_files_it_is_the_last_token_of_length_1(tmp_path: Path) -> None:
    assert save(tmp_path) == EmbeddingSettings(num_dimensions=16, pooling=Pooling.LAST, normalize=True)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "include_prompt": True}, Pooling.MEAN),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, Pooling.LAST),
        ({"pooling_mode": "mean"}, Pooling.MEAN),
        ({"pooling_mode": "lasttoken", "word_embedding_dimension": 16}, Pooling.LAST),
    ],
)
def test_pooling_is_read(tmp_path: Path, pooling: dict[str, Any], expected: Pooling) -> None:
    settings = save(tmp_path, ["Transformer", "Pooling"], pooling)
    assert (settings.pooling, settings.normalize, settings.refusal) == (expected, False, None)


@pytest.mark.parametrize("mode", ["cls_token", "max_tokens", "weightedmean_tokens", "mean_sqrt_len_tokens"])
def test_other_pooling_is_refused_by_name(tmp_path: Path, mode: str) -> None:
    settings = save(tmp_path, ["Transformer", "Pooling", "Normalize"], {f"pooling_mode_{mode}": True})
    with pytest.raises(UnsupportedField, match=mode.partition("_")[0]):
        settings.check(None)


def test_other_modules_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedField, match="Dense"):
        save(tmp_path, ["Transformer", "Pooling", "Dense", "Normalize"]).check(None)


def test_a_damaged_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        embedding_settings(tmp_path, 16)


def test_vectors_are_cut_and_scaled() -> None:
    settings = EmbeddingSettings(num_dimensions=3)
    assert settings.vector((3.0, 4.0, 12.0), 2) == (0.6, 0.8)
    assert EmbeddingSettings(num_dimensions=3, normalize=False).vector((3.0, 4.0, 12.0), None) == (3.0, 4.0, 12.0)
    with pytest.raises(InvalidRequest, match="from 1 to 3"):
        settings.check(4)


def test_parts_of_a_prompt_are_put_together() -> None:
    parts = [b"\0\0\x80\x3f\0\0\0\0", b"\0\0\x80\x3f\0\0\0\x40"]  # (1, 0) and (1, 2)
    assert pooled_states(parts, Pooling.MEAN, 4) == (0.5, 0.5)
    assert pooled_states(parts[1:], Pooling.LAST, 4) == (1.0, 2.0)
