"""The HTTP application: routes, gate, errors, and an engine that it was given or that its lifespan starts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig

from limelight.config import EngineConfig
from limelight.engine import Engine
from limelight.errors import NotOnAsyncio
from limelight.http.adapters import adapter_routes
from limelight.http.anthropic.routes import message_routes
from limelight.http.auth import NEEDS_OBSERVE, PUBLIC, Authenticator, Gate
from limelight.http.capabilities import capabilities_route
from limelight.http.chat import chat_route
from limelight.http.completions import completions_route
from limelight.http.embeddings import embeddings_route
from limelight.http.errors import exception_handlers
from limelight.http.exchange import ExchangeRecorder
from limelight.http.head_requests import HeadRequests
from limelight.http.health import health_routes
from limelight.http.keys.key_ring import KeyRing
from limelight.http.live.routes import live_routes
from limelight.http.metrics import metrics_route
from limelight.http.model_list import model_routes
from limelight.http.openapi.routes import documentation_routes
from limelight.http.page import page_routes
from limelight.http.rate_limits import RATE_LIMIT_HEADERS, RateLimits
from limelight.http.records import ANSWER_HEADER, add_record_ids, record_routes
from limelight.http.request_id import add_request_id
from limelight.http.responses.routes import response_routes
from limelight.http.responses.store import ResponseStore
from limelight.http.serving import IGNORED_FIELDS_HEADER, Serving
from limelight.http.settings import HttpSettings
from limelight.http.stream_options import STREAM_HEADER
from limelight.http.stream_routes import stream_routes
from limelight.http.tokens import token_routes
from limelight.http.uploads import BoundedUploads


def create_app(
    engine_or_config: Engine | EngineConfig | None = None, *, settings: HttpSettings | None = None
) -> Litestar:
    """The OpenAI-compatible server as an ASGI application, to be run or mounted.

    It configures no logging, installs no signal handler and reads no environment variable.

    Args:
        engine_or_config: an engine, which its owner starts and stops (until it is ready, requests are answered with
            503), or the config of one that the application's lifespan starts and stops. None is the default config,
            so that `uvicorn --factory limelight.http.app:create_app` works.
        settings: how the HTTP side behaves; the default suits loopback.
    """
    settings = settings or HttpSettings()
    owned = not isinstance(engine_or_config, Engine)
    engine = engine_or_config if isinstance(engine_or_config, Engine) else Engine(engine_or_config or EngineConfig())
    app = Litestar(
        route_handlers=_routers(Serving(engine, settings)),
        lifespan=[_running(engine) if owned else _started_by_its_owner],
        middleware=[Gate(_authenticator(settings), settings.allowed_hosts)],
        exception_handlers=exception_handlers(),
        before_send=[add_request_id, RateLimits(engine).add, add_record_ids],
        cors_config=_cors(settings.cors_origins),
        request_max_body_size=settings.max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    # Outermost, where there is no hook for it: middleware of the application does not see what no route answers.
    inner = HeadRequests(BoundedUploads(app.asgi_handler, settings))
    app.asgi_handler = ExchangeRecorder(inner, engine.telemetry, settings.cors_origins)
    return app


def create_metrics_app(engine: Engine) -> Litestar:
    """`/metrics` of an engine and nothing else, without keys: for a port that only a scraper can reach."""
    return Litestar(
        route_handlers=[metrics_route(engine, PUBLIC)],
        openapi_config=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )


def _routers(serving: Serving) -> list[Router]:
    """Every route at its own path and, with a root path, under that too."""
    settings = serving.settings
    store = ResponseStore(
        settings.max_stored_responses, settings.response_store_bytes, settings.response_max_age_seconds
    )
    paths = ["/"] if not serving.settings.root_path else ["/", serving.settings.root_path]
    return [
        Router(
            path,
            route_handlers=[
                chat_route(serving),
                completions_route(serving),
                embeddings_route(serving),
                *message_routes(serving),
                *stream_routes(serving),
                *response_routes(serving, store),
                *model_routes(serving),
                capabilities_route(serving),
                *token_routes(serving),
                *adapter_routes(serving),
                *live_routes(serving),
                *record_routes(serving.engine),
                *health_routes(serving),
                metrics_route(serving.engine, NEEDS_OBSERVE),
                *documentation_routes(),
                *page_routes(),
            ],
        )
        for path in paths
    ]


def _authenticator(settings: HttpSettings) -> Authenticator:
    key_ring = None if settings.key_file is None else KeyRing(Path(settings.key_file))
    return Authenticator(settings.api_keys, settings.admin_keys, key_ring)


def _running(engine: Engine) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        async with engine:
            yield

    return lifespan


@asynccontextmanager
async def _started_by_its_owner(_app: Litestar) -> AsyncIterator[None]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NotOnAsyncio from None
    yield


def _cors(origins: tuple[str, ...]) -> CORSConfig | None:
    """Pages of these origins may call the API, and read the headers that are ours."""
    if not origins:
        return None
    return CORSConfig(
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
        expose_headers=[
            "x-request-id",
            "retry-after",
            "retry-after-ms",
            "server-timing",
            IGNORED_FIELDS_HEADER,
            STREAM_HEADER,
            *RATE_LIMIT_HEADERS,
            ANSWER_HEADER,
        ],
        max_age=600,
    )
