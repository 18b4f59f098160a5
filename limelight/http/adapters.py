"""`POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`: vLLM's routes, for admins only."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litestar import MediaType, Request, post
from litestar.handlers import HTTPRouteHandler

from limelight.engine import Engine
from limelight.errors import Forbidden, InvalidRequest, ModelError
from limelight.http.auth import NEEDS_ADMIN
from limelight.http.protocol.adapters import LOAD_DECODER, UNLOAD_DECODER
from limelight.http.serving import Serving
from limelight.quoting import quoted

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""What `models/hub/names.py`, of which this layer imports nothing, takes for a repository."""


def adapter_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """Both routes. They answer with a line of text, or with an error object like every other route."""

    @post("/v1/load_lora_adapter", status_code=200, media_type=MediaType.TEXT, opt=NEEDS_ADMIN)
    async def load_lora_adapter(request: Request[Any, Any, Any]) -> str:
        body, _ = await serving.decode(request, LOAD_DECODER)
        path = adapter_source(body.lora_path, serving.settings.adapter_folders)
        await _load(serving.engine, body.lora_name, path)
        return f"Success: LoRA adapter '{body.lora_name}' added successfully."

    @post("/v1/unload_lora_adapter", status_code=200, media_type=MediaType.TEXT, opt=NEEDS_ADMIN)
    async def unload_lora_adapter(request: Request[Any, Any, Any]) -> str:
        body, _ = await serving.decode(request, UNLOAD_DECODER)
        await serving.engine.unload_adapter(body.lora_name)
        return f"Success: LoRA adapter '{body.lora_name}' removed successfully."

    return [load_lora_adapter, unload_lora_adapter]


def adapter_source(path: str, folders: Sequence[str]) -> str:
    """What the engine is given for `lora_path`: a path below one of `folders`, or a hub id that is never a path.

    An admin's key is no key to the file system: outside of `folders` nothing is looked at, so that the answer is the
    same whatever is there. Links are followed before it is decided.

    Raises:
        Forbidden: the path is not below an allowed folder.
        InvalidRequest: it is neither an absolute path nor a hub id.
    """
    if HUB_ID.fullmatch(path):
        return f"hf://{path}"
    if not Path(path).is_absolute():
        raise InvalidRequest(
            f"lora_path is {quoted(path)}; give an absolute path or a hub id (organisation/name)",
            param="lora_path",
        )
    if "\x00" not in path and len(path) < 4096:
        plain = Path(os.path.normpath(path))
        if any(plain.is_relative_to(os.path.normpath(folder)) for folder in folders):
            real = Path(os.path.realpath(plain))
            if any(real.is_relative_to(os.path.realpath(folder)) for folder in folders):
                return str(real)
    allowed = "adapters can be named by hub id only" if not folders else "it is below none of the allowed folders"
    raise Forbidden(f"lora_path is {quoted(path)}: {allowed} (the server's option --lora-folder)", param="lora_path")


async def _load(engine: Engine, name: str, path: str) -> None:
    """An adapter that cannot be loaded is the request's fault, not the server's."""
    try:
        await engine.load_adapter(name, path)
    except ModelError as error:
        raise InvalidRequest(error.message, param="lora_path") from error
