"""What is exported of shares: whose turn requests take."""

from collections.abc import Callable

from limelight.telemetry.prometheus.metric import MetricRow
from limelight.telemetry.prometheus.readings import Numbers, totals
from limelight.telemetry.prometheus.snapshot import Snapshot
from limelight.telemetry.share_totals import LIMITS, ShareUsage

_SHARE = ("share",)


def _used(snapshot: Snapshot, read: Callable[[ShareUsage], float]) -> Numbers:
    yield from (((name,), read(usage)) for name, usage in snapshot.shares.items())


def _lag(snapshot: Snapshot) -> Numbers:
    """Of shares that are counted together the largest."""
    if snapshot.statistics is None:
        return
    lags: dict[str, float] = dict.fromkeys(snapshot.shares, 0.0)
    for share in snapshot.statistics.shares:
        label = snapshot.counters.shares.label(share.name)
        lags[label] = max(lags.get(label, 0.0), share.lag_tokens)
    yield from (((label,), lag) for label, lag in lags.items())


SHARE_ROWS = (
    MetricRow(
        "gauge",
        "limelight_share_live_requests",
        "Requests that have been admitted and have not ended; shares beyond the first 200 are `other`",
        _SHARE,
        lambda at: _used(at, lambda usage: usage.num_live),
    ),
    MetricRow(
        "counter",
        "limelight_share_tokens",
        "Tokens as quotas count them: of prompts that have begun to run, cached ones not counted, and of output",
        _SHARE,
        lambda at: _used(at, lambda usage: usage.tokens),
    ),
    MetricRow(
        "counter",
        "limelight_share_wait_seconds",
        "Time that requests waited because it was the turn of another share",
        _SHARE,
        lambda at: _used(at, lambda usage: usage.wait_seconds),
    ),
    MetricRow(
        "counter",
        "limelight_share_refusals",
        "Requests refused by a limit of their share (429): of its live `requests`, or of its quota of `tokens`",
        ("share", "limit"),
        lambda at: totals(at.counters.shares.refusals, *((share, limit) for share in at.shares for limit in LIMITS)),
    ),
    MetricRow(
        "gauge",
        "limelight_share_virtual_lag_tokens",
        "Virtual tokens by which a share is behind the one that has been served most, while several want something",
        _SHARE,
        _lag,
    ),
)
