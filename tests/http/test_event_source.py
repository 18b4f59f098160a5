"""The tests' own reader of event streams, by the examples of the standard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.event_source import Event, EventSourceParser


@pytest.mark.parametrize(
    ("content", "events"),
    [
        ("data: YHOO\ndata: +2\ndata: 10\n\n", [Event("message", "YHOO\n+2\n10", "")]),
        (
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [
                Event("message", "first event", "1"),
                Event("message", "second event", ""),
                Event("message", " third event", ""),
            ],
        ),
        ("data\n\ndata\ndata\n\ndata:", [Event("message", "", ""), Event("message", "\n", "")]),
        ("id: 7\n\ndata: x\n\n", [Event("message", "x", "7")]),
        (
            "\ufeffevent: add\r\ndata: 1\r\n\r\nevent: add\n\ndata: 2\r\r",
            [Event("add", "1", ""), Event("message", "2", "")],
        ),
        ("id: 1\n: a comment\ndata: x\n\n", [Event("message", "x", "1")]),
    ],
)
@given(cuts=st.randoms(use_true_random=False))
def test_events_are_those_of_the_standard_at_every_cut(content, events, cuts):
    raw = content.encode()
    places = sorted(cuts.sample(range(len(raw) + 1), 3))
    parser = EventSourceParser()
    found = [
        event
        for start, end in zip([0, *places], [*places, len(raw)], strict=True)
        for event in parser.feed(raw[start:end])
    ]
    if raw.endswith(b"\r"):
        found += parser.feed(b"x")  # only now it is certain that no line feed follows
    assert found == events


def test_retry_and_comments_are_kept_apart():
    parser = EventSourceParser()
    assert parser.feed(b"retry: 10x\n:a\nretry: 250\n: b\n\n") == []
    assert parser.retry == 250
    assert parser.comments == ["a", " b"]
