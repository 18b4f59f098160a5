"""`GET /metrics`: what Prometheus scrapes, in its text format or in OpenMetrics, which has exemplars."""

import gzip
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio.lowlevel
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from limelight.engine import Engine
from limelight.http.exchange import UNTRACED

OPENMETRICS = "application/openmetrics-text"
VLLM_PREFIX = "vllm:"
_END = b"# EOF\n"
_FAST = 1  # of gzip's levels: text like this shrinks to a tenth at any of them


def metrics_route(engine: Engine, access: Mapping[str, Any]) -> HTTPRouteHandler:
    """The route, for those whom `access` lets in.

    It shows what the engine's registry has, the host's own metrics included if the host gave it one.
    """

    @get("/metrics", opt={**access, **UNTRACED})
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Prometheus metrics."""
        accepted = request.headers.get("accept", "")
        if engine.config.vllm_metrics:
            accepted = _prefer_text(accepted)
        encode, content_type = _encoder(accepted)
        body = await _encoded(engine.metrics_registry, encode, openmetrics=content_type.startswith(OPENMETRICS))
        headers = {"content-type": content_type, "cache-control": "no-store", "vary": "accept, accept-encoding"}
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, _FAST)
            headers["content-encoding"] = "gzip"
        return Response(body, headers=headers, media_type=content_type)

    return metrics


def _encoder(accepted: str) -> tuple[Callable[[Collector], bytes], str]:
    """How to write what a client accepts, and its media type; the text format where that cannot be understood."""
    try:
        return choose_encoder(accepted)
    except (TypeError, ValueError):  # a version that is none
        return choose_encoder("")


def _prefer_text(accepted: str) -> str:
    """`Accept` without OpenMetrics, if it has the text format, too.

    OpenMetrics names may hold no colons for every reader: `vllm:` names are in the text format alone, and Prometheus
    would ask for the other one.
    """
    kinds = accepted.split(",")
    if not any(kind.strip().startswith("text/plain") for kind in kinds):
        return accepted
    return ",".join(kind for kind in kinds if not kind.strip().startswith(OPENMETRICS))


async def _encoded(registry: CollectorRegistry, encode: Callable[[Collector], bytes], *, openmetrics: bool) -> bytes:
    """All metrics, one after the other: all of them at once would hold up the event loop for milliseconds."""
    parts = []
    for metric in registry.collect():
        if openmetrics and metric.name.startswith(VLLM_PREFIX):
            continue
        parts.append(encode(_Single(metric)).removesuffix(_END))
        await anyio.lowlevel.checkpoint()
    if openmetrics:
        parts.append(_END)
    return b"".join(parts)


class _Single(Collector):
    """One metric, in the shape in which encoders take them."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """It."""
        yield self._metric
