"""What the HTTP side counts: exchanges by route, and refusals that no engine has seen."""

import time

from limelight.telemetry.buckets import EXCHANGE_SECONDS
from limelight.telemetry.instruments import Counter, HistogramFamily
from limelight.telemetry.timeline import Delivery

MAX_HTTP_SERIES = 1000
UNMATCHED = "unmatched"
"""The route of requests that no route answers: their paths are the client's own invention."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER_METHOD = "_OTHER"
"""As the semantic conventions of HTTP spell an unknown method."""
REASONS = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "media_type",
}


class HttpCounters:
    """Totals and histograms of one application.

    Attributes:
        requests: by route template, method and status.
        seconds: from the first byte read to the last byte written, by route template.
        refusals: of requests that never reached the engine, by route template and reason.
        response_bytes, send_wait_seconds: by route template; the second is back-pressure.
    """

    def __init__(self) -> None:
        self.requests = Counter(3, MAX_HTTP_SERIES)
        self.seconds = HistogramFamily(EXCHANGE_SECONDS, 1)
        self.refusals = Counter(2)
        self.response_bytes = Counter(1)
        self.send_wait_seconds = Counter(1)

    def ended(
        self,
        *,
        method: str,
        route: str | None,
        status: int,
        seconds: float,
        reached_engine: bool,
        delivery: Delivery | None = None,
        trace_id: str | None = None,
    ) -> None:
        """An exchange is over: answered, refused, or left by its client.

        Args:
            route: the template (`/v1/streams/{stream_id}`), never a path; None: no route answers this path.
            status: of the answer; 499 if the client left before there was one.
            reached_engine: whether it opened a request of the engine, which counts its refusals itself.
            delivery: what was written, if that was measured.
            trace_id: hexadecimal, of a span that is recorded; None: there is none.
        """
        route = route or UNMATCHED
        self.requests.add(1, route, method if method in METHODS else OTHER_METHOD, str(status))
        self.seconds.of(route).observe_traced(seconds, trace_id, time.time())
        if status >= 400 and not reached_engine and (reason := REASONS.get(status)) is not None:
            self.refusals.add(1, route, reason)
        if delivery is not None:
            self.response_bytes.add(delivery.num_bytes, route)
            self.send_wait_seconds.add(delivery.seconds, route)
