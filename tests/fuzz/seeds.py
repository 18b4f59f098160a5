"""Valid inputs to begin with, for each target."""

import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.targets import PATHS, RESUME_PATHS
from tests.models.gguf.test_architectures import MODELS
from tests.models.gguf.written_models import write_model
from tests.models.tiny_models import tiny_model

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": MESSAGES, "max_tokens": 3, "n": 2, "stop": ["a"], "logprobs": True, "top_logprobs": 2, "seed": 1},
        {"messages": MESSAGES, "stream": True, "max_tokens": 3, "stream_options": {"include_usage": True}},
        {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "auto",
            "max_tokens": 3,
        },
        {
            "messages": MESSAGES,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}},
            "max_tokens": 3,
        },
        {"messages": MESSAGES, "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}", "max_tokens": 1},
    ],
    "/v1/completions": [{"prompt": ["a", "b"], "max_tokens": 3, "echo": True, "logprobs": 1, "logit_bias": {"65": 5}}],
    "/v1/embeddings": [{"input": ["a", "b"], "encoding_format": "base64", "dimensions": 4}],
    "/v1/responses": [{"input": [{"role": "user", "content": "hi"}], "max_output_tokens": 3, "store": True}],
    "/v1/messages": [{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "system": "be brief"}],
    "/v1/messages/count_tokens": [{"messages": [{"role": "user", "content": "hi"}]}],
    "/tokenize": [{"prompt": "hi", "add_special_tokens": True}, {"messages": MESSAGES}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/v1/load_lora_adapter": [{"lora_name": "a", "lora_path": "/nowhere"}],
}
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["a"]},
    {"$defs": {"n": {"type": "integer", "minimum": 3}}, "type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 3},
    {"anyOf": [{"const": 1}, {"enum": ["a", None]}], "description": "x"},
]


def seeds(name: str) -> list[bytes]:
    """Of a target."""
    match name:
        case "http_body":
            return [
                bytes([number]) + json.dumps({"model": "scripted", **body}).encode()
                for number, path in enumerate(PATHS)
                for body in BODIES[path]
            ]
        case "resume_id":
            names = [b"abc\n12", b"chatcmpl-0123456789abcdef\n0", b"resp_1\n", b"..\n-1", b"\xff\n\xff"]
            return [bytes([number]) + given for number in range(len(RESUME_PATHS)) for given in names]
        case "gguf_header" | "gguf_model":
            return _gguf_files(("llama", "gemma3"))
        case "safetensors_header":
            return [_safetensors_file()]
        case "chat_template":
            folder = Path(__file__).resolve().parent.parent / "models" / "text" / "chat_templates"
            return [path.read_bytes() for path in sorted(folder.glob("*.jinja"))]
        case "schema":
            written = [b"\0" + json.dumps(given).encode() for given in SCHEMAS]
            return [*written, b"\1[a-z]{2,4}(x|y)*", b'\2start: "a" /[0-9]+/ rest?\nrest: "b"', b"\3yes\nno"]
    raise ValueError(name)


def _gguf_files(names: Sequence[str]) -> list[bytes]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            model = tiny_model(MODELS[name][0], **{**MODELS[name][1], "num_hidden_layers": 1})
            path = write_model(model, Path(folder) / f"{name}.gguf")
            found.append(path.read_bytes()[: 2**16])
    return found


def _safetensors_file() -> bytes:
    tensors = {
        "model.norm.weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "__metadata__": {"format": "pt"},
    }
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)
