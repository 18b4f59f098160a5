"""Files of every architecture with values and bytes that no converter writes: read or refused, and nothing else."""

import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import ModelError
from limelight.models.checkpoint import check_parameters
from limelight.models.decoder import parameter_shapes
from limelight.models.gguf.checkpoint import GgufCheckpoint
from tests.models.gguf.test_architectures import MODELS
from tests.models.gguf.written_models import write_model
from tests.models.tiny_models import tiny_model

NAMES = ["llama", "qwen2moe", "gemma2", "gemma3", "phi3", "phi3, longrope", "gpt-oss"]
ROOM_BYTES = 2**24
"""For shapes of up to 1,024 layers by name, and for what opening a file of 100 KB takes besides."""

Kind = gguf.GGUFValueType
VALUES = st.one_of(
    st.tuples(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**31, 2**32, 2**63]), st.just(Kind.UINT64)),
    st.tuples(st.integers(-(2**63), 8), st.just(Kind.INT64)),
    st.tuples(st.floats() | st.sampled_from([0.0, 1e-320, 1e308]), st.just(Kind.FLOAT64)),
    st.tuples(st.booleans(), st.just(Kind.BOOL)),
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=5) | st.just("x" * 5000), st.just(Kind.STRING)),
    st.tuples(
        st.lists(st.integers(0, 300), min_size=1, max_size=20)
        | st.lists(st.booleans(), min_size=1, max_size=8)
        | st.lists(st.text(st.characters(codec="utf-8"), max_size=3), min_size=1, max_size=5)
        | st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=3),
        st.just(Kind.ARRAY),
    ),
)
OPTIONAL = [
    "attention.sliding_window", "attention.sliding_window_pattern", "attn_logit_softcapping", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scale_linear",
    "rope.freq_base_swa", "rope.dimension_count", "attention.key_length", "expert_count", "expert_used_count",
    "expert_shared_feed_forward_length", "expert_weights_norm",
]  # fmt: skip
"""Keys that a file of another architecture, or of another model, has."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return tmp_path_factory.mktemp("hostile"), {
        name: tiny_model(MODELS[name][0], **{**MODELS[name][1], "num_hidden_layers": 2}) for name in NAMES
    }


def read_or_refused(path: Path) -> None:
    refusal = ""
    tracemalloc.start()
    try:
        checkpoint = GgufCheckpoint(path)
        for name in checkpoint.names():
            assert checkpoint.tensor(name).shape == checkpoint.shape(name)
        check_parameters(checkpoint, parameter_shapes(checkpoint.spec))
    except ModelError as error:
        refusal = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < ROOM_BYTES
    assert len(refusal) < 3000


@given(name=st.sampled_from(NAMES), draw=st.data())
@settings(max_examples=150)
def test_any_value_of_any_key(written: tuple[Path, dict[str, Any]], name: str, draw: st.DataObject) -> None:
    folder, models = written

    def change(writer: gguf.GGUFWriter) -> None:
        keys = writer.kv_data[0]
        architecture = keys["general.architecture"].value
        known = [
            *keys,
            *(f"{architecture}.{optional}" for optional in OPTIONAL),
            "general.sampling.temp",
            "split.count",
        ]
        for key in draw.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)):
            if draw.draw(st.booleans()):
                value, kind = draw.draw(VALUES)
                keys[key] = gguf.gguf_writer.GGUFValue(value, kind)
            else:
                keys.pop(key, None)

    read_or_refused(write_model(models[name], folder / "changed.gguf", change=change))


@given(name=st.sampled_from(NAMES), draw=st.data())
@settings(max_examples=150)
def test_any_bytes_in_the_header(written: tuple[Path, dict[str, Any]], name: str, draw: st.DataObject) -> None:
    # Keys, the vocabulary and the tensors' entries take about 4 KB.
    changes = draw.draw(st.lists(st.tuples(st.integers(0, 4500), st.integers(0, 255)), max_size=6))
    read_or_refused(damaged(written, name, changes))


def test_a_key_that_swallows_the_next_ones(written: tuple[Path, dict[str, Any]]) -> None:
    read_or_refused(damaged(written, "gemma3", [(447, 4)]))


def damaged(written: tuple[Path, dict[str, Any]], name: str, changes: list[tuple[int, int]]) -> Path:
    """A model's file with other bytes in some places."""
    folder, models = written
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_model(models[name], path)
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place] = value
    changed = folder / "damaged.gguf"
    changed.write_bytes(content)
    return changed
