"""`GET /v1/models` and `GET /v1/models/{id}`: the model that is served, and its adapters."""

from typing import Any

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler

from limelight.errors import EngineNotRunning, ModelNotFound
from limelight.http.serving import Serving
from limelight.quoting import quoted, shorten


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `max_model_len`: its context in tokens, null while it loads; `parent`: an adapter's base model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "limelight"
    root: str
    parent: str | None = None
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: str = "list"
    data: list[ModelObject]


def model_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """Both routes; an id may hold slashes (`org/name`)."""

    @get("/v1/models")
    async def list_models(request: Request[Any, Any, Any]) -> ModelList:
        return ModelList(data=_models(serving, request))

    @get("/v1/models/{model_id:path}")
    async def get_model(request: Request[Any, Any, Any]) -> ModelObject:
        models = _models(serving, request)
        asked = str(request.path_params["model_id"]).removeprefix("/")
        for model in models:
            if asked == model.id.strip("/"):
                return model
        names = shorten(", ".join(repr(model.id) for model in models), 300)
        raise ModelNotFound(f"The model {quoted(asked)} is not served here; this server has {names}", param="model")

    return [list_models, get_model]


def _models(serving: Serving, request: Request[Any, Any, Any]) -> list[ModelObject]:
    """Those that the key may use, the model first.

    An adapter's `root` is its name: where its files lie is nobody's business.
    """
    base, may_use = serving.engine.model_name, request.scope["user"].may_use
    try:
        max_model_len = serving.engine.model.capacity.max_model_len
        names = [adapter.name for adapter in serving.engine.adapters]
    except EngineNotRunning:
        max_model_len, names = None, []
    return [
        ModelObject(
            id=name,
            root=name,
            parent=None if name == base else base,
            created=serving.created,
            max_model_len=max_model_len,
        )
        for name in (base, *names)
        if may_use(name)
    ]
