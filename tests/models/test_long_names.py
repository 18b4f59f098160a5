"""Names and values of thousands of characters in files and requests: every refusal is short all the same."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from limelight.errors import CheckpointError, InvalidRequest, ModelError
from limelight.generation import SamplingParams
from limelight.models.gguf.file import GgufFile
from limelight.models.hub.listing import _stays_inside
from limelight.models.lora.adapter_config import AdapterConfig
from limelight.models.safetensors.checkpoint import SafetensorsFiles
from limelight.models.text.chat_messages import plain, template_messages
from limelight.models.text.chat_template import ChatTemplate, TemplateSyntax
from limelight.models.text.vocabulary import load_vocabulary
from limelight.models.wording import listed
from tests.models.gguf.test_file import ARRAY, U32, entry, file_bytes, key
from tests.models.lora.tiny_adapters import settings_of

LONG = "x" * 20_000
LONG_KEY = LONG.encode()
NESTED = struct.pack("<IQ", ARRAY, 1) * 6


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises((ModelError, InvalidRequest, TemplateSyntax)) as caught:
        read()
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        file_bytes([key(LONG_KEY, 820, b"")], []),
        file_bytes([key(LONG_KEY, ARRAY, NESTED + struct.pack("<IQ", U32, 0))], []),
        file_bytes([key(LONG_KEY, ARRAY, struct.pack("<IQ", U32, 2**40))], []),
        file_bytes([key(LONG_KEY, U32, bytes(4))] * 2, []),
        file_bytes([], [entry(LONG_KEY, (4,))], bytes(16)),
    ],
    ids=["type", "nested", "count", "twice", "tensor"],
)
def test_in_the_header_of_a_gguf_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    message = refusal(lambda: GgufFile(path))
    assert message.startswith(str(path))
    assert len(message) < len(str(path)) + 300


@pytest.mark.parametrize(
    "places",
    [{LONG: "../a"}, {LONG: LONG + ".safetensors"}, {LONG: "model.safetensors"}, {"a": "a" * 244 + ".safetensors"}],
    ids=["outside", "file", "tensor", "longest"],
)
def test_in_the_index_of_shards(tmp_path: Path, places: dict[str, str]) -> None:
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert len(refusal(lambda: SafetensorsFiles(tmp_path))) < 2 * len(str(tmp_path)) + 500


def test_in_a_safetensors_file(tmp_path: Path) -> None:
    save_file({LONG: np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    message = refusal(lambda: SafetensorsFiles(tmp_path))
    assert len(message) < len(str(tmp_path)) + 300
    assert message.endswith("at most 512 characters make a name")


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, "folder/" + "x" * 300 + "/model.safetensors"])
def test_in_the_listing_of_a_hub(name: str) -> None:
    assert not _stays_inside(name)


@pytest.mark.parametrize(
    "changes",
    [
        {"peft_type": LONG},
        {"bias": LONG},
        {"init_lora_weights": LONG},
        {"layers_pattern": [LONG], "layers_to_transform": [1]},
        {"target_modules": f"({LONG}"},
        {"rank_pattern": {LONG: 4}},
        {"rank_pattern": {LONG: LONG}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_in_the_settings_of_an_adapter(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings_of(4, 8, None) | changes))
    assert len(refusal(lambda: AdapterConfig(tmp_path))) < len(str(tmp_path)) + 600


@pytest.mark.parametrize(
    "content",
    [{"model": {"type": LONG}}, {"version": LONG}, {"pre_tokenizer": {"type": LONG}}],
    ids=lambda content: next(iter(content)),
)
def test_in_a_tokenizer(tmp_path: Path, content: dict[str, Any]) -> None:
    whole = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | content))
    assert len(refusal(lambda: load_vocabulary(tmp_path))) < len(str(tmp_path)) + 500


def test_in_a_chat_template() -> None:
    with pytest.raises(TemplateSyntax) as caught:
        ChatTemplate(f"{{% {LONG} %}}", now=lambda: datetime.now(UTC))
    message = str(caught.value)
    assert len(message) < 500
    assert "line 1: Encountered unknown tag 'xxx" in message


@pytest.mark.parametrize(
    "message",
    [{"role": "user", "content": [{"type": LONG}]}, {"role": "user", "content": "", LONG: object()}],
    ids=["type", "name"],
)
def test_in_messages(message: dict[str, Any]) -> None:
    assert len(refusal(lambda: template_messages([message], keep_parts=False))) < 300


def test_where_deep_values_stand_costs_no_memory_at_each_level() -> None:
    value: Any = object()
    for _ in range(150):
        value = [value]
    tracemalloc.start()
    message = refusal(lambda: plain({LONG * 10: value}, "chat_template_kwargs"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 10 * len(LONG)
    assert len(message) < 300


@pytest.mark.parametrize("changes", [{"temperature": LONG}, {"seed": 10**5000}, {"top_p": [LONG] * 1000}])
def test_in_a_request(changes: dict[str, Any]) -> None:
    assert len(refusal(lambda: SamplingParams(**changes))) < 300


def test_in_a_list() -> None:
    assert len(str(CheckpointError(listed([LONG] * 100)))) < 3200
