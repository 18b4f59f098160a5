"""Lines of a batch, as the tests write them."""

import json
from pathlib import Path
from typing import Any


def request(custom_id: str, **fields: Any) -> dict[str, Any]:
    """A completion; `fields` are those of its body."""
    body = {"model": "scripted", "prompt": "hi", "max_tokens": 4, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def written(path: Path, *lines: dict[str, Any] | str) -> Path:
    """`path` with one line each; texts stand as they are."""
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{line}\n" for line in text))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of an output, each of which must have the four fields and nothing else."""
    content = path.read_bytes()
    assert content.endswith(b"\n")
    lines: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
    assert all(line.keys() == {"id", "custom_id", "response", "error"} for line in lines)
    assert all((line["response"] is None) != (line["error"] is None) for line in lines)
    return lines
