"""What HTTP exchanges leave behind: routes and reasons, never what a client made up."""

from limelight.telemetry.http_counters import UNMATCHED, HttpCounters
from limelight.telemetry.timeline import Delivery


def ended(counters, status, *, route="/v1/models", method="GET", reached_engine=False, **more):
    counters.ended(method=method, route=route, status=status, seconds=0.2, reached_engine=reached_engine, **more)


def test_exchanges_are_counted_by_route_method_and_status():
    counters = HttpCounters()
    ended(counters, 200)
    ended(counters, 200)
    ended(counters, 404, route=None, method="BREW")
    assert counters.requests.values == {("/v1/models", "GET", "200"): 2, (UNMATCHED, "_OTHER", "404"): 1}
    assert sum(counters.seconds.of("/v1/models").counts) == 2


def test_refusals_are_those_that_never_reached_the_engine():
    counters = HttpCounters()
    for status in (200, 401, 403, 404, 405, 413, 415, 500, 503):
        ended(counters, status)
    ended(counters, 400, reached_engine=True)
    ended(counters, 400)
    reasons = {reason for _, reason in counters.refusals.values}
    assert reasons == {
        "unauthorized", "forbidden", "not_found", "method_not_allowed", "too_large", "media_type", "invalid"
    }  # fmt: skip
    assert set(counters.refusals.values.values()) == {1}


def test_what_was_written_and_waited_for_is_added_up_and_a_trace_is_an_example():
    counters = HttpCounters()
    ended(counters, 200, delivery=Delivery(num_bytes=10, seconds=0.5), trace_id="aa")
    ended(counters, 200, delivery=Delivery(num_bytes=5, seconds=0.25))
    assert counters.response_bytes.values == {("/v1/models",): 15}
    assert counters.send_wait_seconds.values == {("/v1/models",): 0.75}
    examples = [example for example in counters.seconds.of("/v1/models").exemplars if example is not None]
    assert [(example.value, example.trace_id) for example in examples] == [(0.2, "aa")]
