"""The fuzzers' targets on their seeds, and on what a few changes make of these; `make fuzz` goes on from here."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.batch.in_process import Received
from tests.fuzz import targets
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, Finding, run

TOKENS = [
    b"\0", b"\xff", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"{", b"[", b'"', b"null", b"1e999", b"-1", b"NaN", b"\\ud800",
    b"[" * 500, b'{"a":' * 500, b"9" * 400, b"{{", b"{%", b"%}", b"(a+)+$", b"..", b"%00", b"\n", b"\r\n",
]  # fmt: skip
CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(TOKENS) | st.binary(max_size=8)),
    max_size=4,
)


@functools.cache
def seeds_of(name: str) -> list[bytes]:
    return seeds(name)


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_served_or_refused(name: str) -> None:
    for data in (b"", b"\0", *seeds_of(name)):
        run(name, data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_so_is_what_changes_make_of_them(name: str, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(seeds_of(name)))
    for place, length, new in data.draw(CHANGES):
        start = int(place * len(changed))
        changed = changed[:start] + new + changed[start + length :]
    run(name, changed)


@pytest.mark.parametrize(
    ("status", "body"), [(500, b'{"error": {}}'), (400, b"{}"), (400, b'{"error": {"message": "Traceback"}}')]
)
def test_a_fault_is_a_finding(monkeypatch: pytest.MonkeyPatch, status: int, body: bytes) -> None:
    monkeypatch.setattr(targets._Server, "ask", lambda *_: Received(status, {}, body))
    with pytest.raises(Finding):
        run("http_body", b"{}")


def test_so_is_an_endless_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1000.0])
    monkeypatch.setattr(targets.time, "process_time", lambda: next(clock))
    with pytest.raises(Finding, match="it took"):
        run("chat_template", b"hi")
