"""The soak run short, over a scripted model; and what it must not take for a good answer."""

import json

import httpx
import pytest

from benchmarks.soak import growth, main, table
from benchmarks.soak_requests import Violation, check_chat, refusal
from benchmarks.soak_server import Sample

END = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
ERROR = {"message": "full", "type": "overloaded_error", "code": "overloaded"}


def test_some_seconds_of_it_find_nothing(tmp_path, capsys):
    saved = tmp_path / "soak.json"
    options = ["--minutes", "0.05", "--calibrate", "1", "--clients", "8", "--scripted", "1", "--max-growth", "10000"]
    code = main([*options, "--json", str(saved)])
    figures = json.loads(saved.read_text())
    assert figures["violations"] == {}
    assert (code, figures["exit_code"]) == (0, 0)
    assert sum(figures["endings"].values()) == figures["num_requests"] > 0
    assert capsys.readouterr().out.strip() == table(figures)


@pytest.mark.parametrize(
    "data",
    [
        [],
        [END],
        ["[DONE]"],
        [END, "[DONE]", "[DONE]"],
        [END, END, "[DONE]"],
        [json.dumps({"error": ERROR}), END, "[DONE]"],
        [END, json.dumps({"error": {**ERROR, "code": "internal_error"}}), "[DONE]"],
    ],
)
def test_a_stream_without_exactly_one_ending_is_a_violation(data):
    assert check_chat([END, "[DONE]"]) == "whole"
    with pytest.raises(Violation):
        check_chat(data)


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (503, {}, {"error": ERROR}),
        (429, {"retry-after": "soon"}, {"error": ERROR}),
        (429, {"retry-after": "0"}, {"error": ERROR}),
        (503, {"retry-after": "1"}, {"detail": "full"}),
        (503, {"retry-after": "1"}, {"error": {**ERROR, "message": ""}}),
        (504, {}, {"error": ERROR}),
        (500, {}, {"error": ERROR}),
        (400, {"retry-after": "1"}, {"error": ERROR}),
    ],
)
def test_a_refusal_that_is_not_well_formed_is_a_violation(status, headers, body):
    assert refusal(httpx.Response(200)) is None
    assert refusal(httpx.Response(503, headers={"retry-after": "2"}, json={"error": ERROR})) == "refused"
    assert refusal(httpx.Response(504, headers={"x-should-retry": "false"}, json={"error": ERROR})) == "too late"
    with pytest.raises(Violation):
        refusal(httpx.Response(status, headers=headers, json=body))


def test_memory_grows_by_the_median_of_its_slopes():
    samples = [Sample(2.0 * number, 1000 + 50 * number + 900 * (number == 7), 3, 4) for number in range(40)]
    assert growth(samples) == pytest.approx(1500)
    assert growth(samples[:1]) == 0.0
