"""Is it alive, is it ready, which version is it: answers for people, load balancers and orchestrators."""

from typing import Any

import msgspec
from litestar import Request, Response, get, route
from litestar.handlers import HTTPRouteHandler

from limelight import __version__
from limelight.engine import EngineHealth, EngineState
from limelight.http.auth import PUBLIC
from limelight.http.exchange import UNTRACED
from limelight.http.keys.principal import OBSERVE
from limelight.http.serving import Serving

PROBE = PUBLIC | UNTRACED


class Health(msgspec.Struct, frozen=True):
    """State of the engine and, for those who may observe, what speaks against sending it work."""

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

    `/health` is for restarting a broken server, so draining is healthy; `/readyz` is for sending it work, so it
    also says no while steps do not go on, or a stop is announced.
    """

    @get("/livez", opt=PROBE)
    async def livez() -> Health:
        """The process answers."""
        return Health("alive", None)

    @get("/health", opt=PROBE)
    async def health(request: Request[Any, Any, Any]) -> Response[Health]:
        """The engine is healthy, draining included."""
        now = serving.engine.health()
        return _answer(now, request, is_good=_is_healthy(now))

    @get("/readyz", opt=PROBE)
    async def readyz(request: Request[Any, Any, Any]) -> Response[Health]:
        """New requests are taken, and steps go on."""
        now = serving.engine.health()
        return _answer(now, request, is_good=now.is_ready)

    @route("/ping", http_method=["GET", "POST"], status_code=200, opt=PROBE)
    async def ping(request: Request[Any, Any, Any]) -> Response[Health]:
        """The same as `/health`."""
        now = serving.engine.health()
        return _answer(now, request, is_good=_is_healthy(now))

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


def _answer(health: EngineHealth, request: Request[Any, Any, Any], *, is_good: bool) -> Response[Health]:
    may_know = OBSERVE in request.scope["user"].scopes
    reason = "; ".join(health.reasons) if may_know and health.reasons else None
    return Response(Health(health.state.value, reason), status_code=200 if is_good else 503)


def _is_healthy(health: EngineHealth) -> bool:
    return health.state in (EngineState.READY, EngineState.DRAINING)
