"""A hub with a safetensors model, and what is reported of a download."""

from collections.abc import Iterator

import pytest

from tests.models.hub.hub_server import Hub, Reported, running_hub

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "merges.txt": b"a b",
    "model.safetensors": bytes(range(256)) * 8192,
    "model.fp16.safetensors": b"a variant",
    "consolidated.safetensors": b"second copy",
    "pytorch_model.bin": b"pickle",
    "README.md": b"# A model",
    "onnx/config.json": b"{}",
    "original/tokenizer.model": b"",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub(FILES) as server:
        yield server


@pytest.fixture
def reported() -> Reported:
    return Reported()


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that is set on this machine, its login included, reaches a test."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path_factory.mktemp("no-login") / "token"))
