"""What is left of a key's limits, in response headers: under the names of OpenAI's API, or of Anthropic's.

Limits of tokens are those of the key's quota, a token bucket: the limit is what it holds, and the reset when it is full
again. Limits of requests are of live ones, which no time resets.
"""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from litestar.types import Message, Scope

from limelight.engine import Engine
from limelight.http.exchange import GENERATES
from limelight.http.keys.principal import Principal
from limelight.telemetry.statistics import QuotaStanding

ANTHROPIC_NAMES = "anthropic_rate_limits"
"""`opt` of a route that tells them under the names of Anthropic's API."""
RATE_LIMIT_HEADERS = (
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
)
"""All of them, for pages of other origins."""


class RateLimits:
    """Tells principals that have limits how much of them is left."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def add(self, message: Message, scope: Scope) -> None:
        """A hook before sending: answers to who has used a model, or was refused it, get the headers."""
        if message["type"] != "http.response.start":
            return
        handler, principal = scope.get("route_handler"), scope.get("user")
        opt = {} if handler is None else handler.opt
        if GENERATES.keys() <= opt.keys() and isinstance(principal, Principal):
            headers = self._headers(principal, anthropic=ANTHROPIC_NAMES in opt)
            message["headers"] = [*message.get("headers", ()), *headers]

    def _headers(self, principal: Principal, *, anthropic: bool) -> Iterator[tuple[bytes, bytes]]:
        limit = principal.max_num_requests
        if limit is not None:
            left = max(0, limit - self._engine.num_requests_of(principal.name))
            name = b"anthropic-ratelimit-requests-%b" if anthropic else b"x-ratelimit-%b-requests"
            yield name % b"limit", b"%d" % limit
            yield name % b"remaining", b"%d" % left
        quota = self._engine.quota(principal.share())
        if quota is not None:
            name = b"anthropic-ratelimit-tokens-%b" if anthropic else b"x-ratelimit-%b-tokens"
            yield name % b"limit", b"%d" % quota.limit_tokens
            yield name % b"remaining", b"%d" % max(0, math.floor(quota.remaining_tokens))
            yield name % b"reset", (_moment(quota) if anthropic else duration(quota.reset_seconds)).encode()


def duration(seconds: float) -> str:
    """As Go writes it and OpenAI's API tells it: `6m0s`, `1.5s`, `17ms`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if hours or minutes else "", f"{rest / 1000:g}s"]
    return "".join(parts)


def _moment(quota: QuotaStanding) -> str:
    """When it is full again, as RFC 3339 writes it."""
    at = datetime.now(UTC) + timedelta(seconds=quota.reset_seconds)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
