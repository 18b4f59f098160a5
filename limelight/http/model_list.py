"""`GET /v1/models` and `GET /v1/models/{id}`: the one model that is served."""

from typing import Any

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler

from limelight.errors import EngineNotRunning, ModelNotFound
from limelight.http.errors import shorten
from limelight.http.serving import Serving


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `max_model_len`: its context in tokens, null while it is loading."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "limelight"
    root: str
    parent: None = None
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: str = "list"
    data: list[ModelObject]


def model_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """Both routes; an id may hold slashes (`org/name`)."""

    @get("/v1/models")
    async def list_models() -> ModelList:
        return ModelList(data=[_model(serving)])

    @get("/v1/models/{model_id:path}")
    async def get_model(request: Request[Any, Any, Any]) -> ModelObject:
        model = _model(serving)
        asked = str(request.path_params["model_id"]).removeprefix("/")
        if asked != model.id.strip("/"):
            raise ModelNotFound(
                f"The model {shorten(asked, 100)!r} is not served here; this server has {model.id!r}", param="model"
            )
        return model

    return [list_models, get_model]


def _model(serving: Serving) -> ModelObject:
    name = serving.engine.model_name
    try:
        max_model_len = serving.engine.model.capacity.max_model_len
    except EngineNotRunning:
        max_model_len = None
    return ModelObject(id=name, root=name, created=serving.created, max_model_len=max_model_len)
