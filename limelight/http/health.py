"""Is it alive, is it ready, which version is it: answers for people, load balancers and orchestrators."""

from typing import Any

import msgspec
from litestar import Request, Response, get, route
from litestar.handlers import HTTPRouteHandler

from limelight import __version__
from limelight.engine import EngineState
from limelight.http.auth import PUBLIC
from limelight.http.exchange import UNTRACED
from limelight.http.keys.principal import OBSERVE
from limelight.http.serving import Serving

PROBE = PUBLIC | UNTRACED
_REASONS = {
    EngineState.NEW: "the engine has not been started",
    EngineState.LOADING: "the model is loading",
    EngineState.READY: None,
    EngineState.DRAINING: "the server finishes its running requests and takes no new ones",
    EngineState.STOPPED: "the engine has been stopped",
    EngineState.FAILED: "the engine has failed; restart the server",
}


class Health(msgspec.Struct, frozen=True):
    """State of the engine and, for those who may observe, what that means unless it is ready."""

    status: str
    reason: str | None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the server is busy with. `server_load`: live requests, vLLM's name; the other two count each choice."""

    server_load: int
    num_running: int
    num_waiting: int


class Version(msgspec.Struct, frozen=True):
    """Version of the server."""

    version: str


def health_routes(serving: Serving) -> list[HTTPRouteHandler]:
    """`/health`, `/livez`, `/readyz`, `/ping` (which is `/health` for SageMaker), `/version` and `/load`.

    `/health` is for restarting a broken server, so draining is healthy; `/readyz` is for sending it work.
    """

    @get("/livez", opt=PROBE)
    async def livez() -> Health:
        """The process answers."""
        return Health("alive", None)

    @get("/health", opt=PROBE)
    async def health(request: Request[Any, Any, Any]) -> Response[Health]:
        """The engine is healthy, draining included."""
        return _answer(serving, request, EngineState.READY, EngineState.DRAINING)

    @get("/readyz", opt=PROBE)
    async def readyz(request: Request[Any, Any, Any]) -> Response[Health]:
        """New requests are taken."""
        return _answer(serving, request, EngineState.READY)

    @route("/ping", http_method=["GET", "POST"], status_code=200, opt=PROBE)
    async def ping(request: Request[Any, Any, Any]) -> Response[Health]:
        """The same as `/health`."""
        return _answer(serving, request, EngineState.READY, EngineState.DRAINING)

    @get("/load", opt=UNTRACED)
    async def load() -> Load:
        """How much the server has to do."""
        statistics = serving.engine.statistics()
        return Load(
            server_load=statistics.num_requests,
            num_running=statistics.num_running,
            num_waiting=statistics.num_waiting,
        )

    @get("/version", opt=UNTRACED)
    async def version() -> Version:
        """Version of the server."""
        return Version(__version__)

    return [livez, health, readyz, ping, load, version]


def _answer(serving: Serving, request: Request[Any, Any, Any], *good: EngineState) -> Response[Health]:
    state = serving.engine.state
    reason = _REASONS[state] if OBSERVE in request.scope["user"].scopes else None
    return Response(Health(state.value, reason), status_code=200 if state in good else 503)
