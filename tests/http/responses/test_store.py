"""What is kept of responses, for whom, and for how long."""

from functools import partial

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from limelight.errors import InvalidRequest, ResponseNotFound
from limelight.http.conversation import AnswerReader
from limelight.http.frame_log import FrameLog
from limelight.http.protocol.responses.items import Item, checked_items
from limelight.http.protocol.responses.objects import OutputMessage, OutputText
from limelight.http.responses.output import Output
from limelight.http.responses.run import ResponseRun
from limelight.http.responses.store import ResponseStore
from tests.http.responses.test_events import empty_response


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def made(number, text="x"):
    message = OutputMessage(id=f"msg_{number}", status="completed", content=(OutputText(text=text),))
    return msgspec.structs.replace(empty_response(), id=f"resp_{number}", status="completed", output=(message,))


def store_of(max_responses=10, max_bytes=2**20, max_age_seconds=100.0, clock=None):
    return ResponseStore(max_responses, max_bytes, max_age_seconds, clock or Clock())


def texts(items):
    return [item.content if isinstance(item.content, str) else item.content[0].text for item in items]


def test_another_ones_response_is_as_unknown_as_none():
    store = store_of()
    store.add("ann", made(1), checked_items("hi"), None)
    assert store.get("ann", "resp_1").response() == made(1)
    for owner, name in (("bob", "resp_1"), ("ann", "resp_2")):
        with pytest.raises(ResponseNotFound):
            store.get(owner, name)
        with pytest.raises(ResponseNotFound):
            store.delete(owner, name)
    with pytest.raises(InvalidRequest, match="msg_1"):
        store.resolve("bob", checked_items([Item(type="item_reference", id="msg_1")]))


def test_what_a_response_continues_outlives_its_own_id():
    store = store_of(max_responses=2)
    first = store.add("ann", made(1, "A"), checked_items("one"), None)
    second = store.add("ann", made(2, "B"), checked_items("two"), first)
    third = store.add("ann", made(3, "C"), checked_items("three"), second)
    with pytest.raises(ResponseNotFound):
        store.get("ann", "resp_1")
    store.delete("ann", "resp_2")
    assert texts(third.conversation()) == ["one", "A", "two", "B", "three", "C"]
    store.delete("ann", "resp_3")
    assert (store.num_bytes, len(store)) == (0, 0)


def test_references_are_replaced_by_what_they_mean():
    store = store_of()
    stored = store.add("ann", made(1, "A"), checked_items("one"), None)
    given = checked_items([Item(id="msg_1"), Item(role="user", content="again"), Item(id=stored.input_items()[0].id)])
    assert texts(store.resolve("ann", given)) == ["A", "again", "one"]
    store.delete("ann", "resp_1")
    with pytest.raises(InvalidRequest) as unknown:
        store.resolve("ann", given)
    assert unknown.value.param == "input[0].id"


def test_old_responses_go():
    clock = Clock()
    store = store_of(max_age_seconds=10, clock=clock)
    store.add("ann", made(1), checked_items("hi"), None)
    clock.now = 5
    store.add("ann", made(2), checked_items("hi"), None)
    clock.now = 11
    with pytest.raises(ResponseNotFound):
        store.get("ann", "resp_1")
    assert store.get("ann", "resp_2")
    clock.now = 20
    store.add("bob", made(3), checked_items("hi"), None)
    assert len(store) == 1


def test_whoever_has_most_gives_way():
    store = store_of(max_responses=3)
    store.add("bob", made(0), checked_items("hi"), None)
    for number in range(1, 6):
        store.add("ann", made(number), checked_items("hi"), None)
    assert store.get("bob", "resp_0")
    assert store.get("ann", "resp_4")
    store = store_of(max_bytes=20_000)
    store.add("bob", made(0), checked_items("hi"), None)
    for number in range(1, 6):
        store.add("ann", made(number), checked_items("long " * 1000), None)
    assert store.get("bob", "resp_0")
    assert store.num_bytes <= 20_000
    assert store.get("ann", "resp_5")


def test_a_response_beyond_the_whole_memory_is_not_kept():
    store = store_of(max_bytes=5000)
    store.add("ann", made(1), checked_items("x" * 6000), None)
    assert (len(store), store.num_bytes) == (0, 0)


class Recorded:
    """Stands for a recording."""

    def __init__(self, store, stored):
        self.log = FrameLog(2**20, partial(store.resize, stored))
        self.cancelled = False

    def cancel(self, reason):
        self.cancelled = True


def test_events_count_and_those_of_running_responses_give_way_last():
    store = store_of(max_bytes=20_000)
    store.add("ann", made(1), checked_items("hi"), None)
    run = ResponseRun(msgspec.structs.replace(empty_response(), id="resp_2"), AnswerReader(), Output())
    running = store.add("ann", run.response, checked_items("hi"), None, run)
    running.recording = recorded = Recorded(store, running)
    for _ in range(40):
        recorded.log.append([b"x" * 1000])
    with pytest.raises(ResponseNotFound):
        store.get("ann", "resp_1")
    assert store.get("ann", "resp_2") is running
    assert recorded.log.first > 0
    assert recorded.log.num_bytes < store.num_bytes <= 20_000
    store.delete("ann", "resp_2")
    assert (recorded.cancelled, store.num_bytes) == (True, 0)
    store.end(running, made(2))
    recorded.log.append([b"the end"])
    assert (len(store), store.num_bytes) == (0, 0)


class StoreMachine(RuleBasedStateMachine):
    """Adds, continues, deletes and waits in any order; the bounds hold and no byte is lost or counted twice."""

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.store = store_of(5, 30_000, 50.0, self.clock)
        self.known = {}
        self.number = 0

    @rule(owner=st.sampled_from("ab"), size=st.integers(0, 9000), continues=st.booleans(), which=st.integers(0, 99))
    def add(self, owner, size, continues, which):
        alive = self._alive(owner)
        parent = self.store.get(owner, alive[which % len(alive)]) if continues and alive else None
        self.number += 1
        said = [*(self.known[parent.id][1] if parent else []), f"{self.number}" + "x" * size, "y"]
        stored = self.store.add(owner, made(self.number, "y"), checked_items(said[-2]), parent)
        self.known[stored.id] = (owner, said)

    @precondition(lambda self: self._alive("a"))
    @rule(which=st.integers(0, 99))
    def delete(self, which):
        alive = self._alive("a")
        self.store.delete("a", alive[which % len(alive)])

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds):
        self.clock.now += seconds

    @invariant()
    def bounds_and_bytes(self):
        alive = {owner: [self.store.get(owner, name) for name in self._alive(owner)] for owner in "ab"}
        held = {}
        for stored in (*alive["a"], *alive["b"]):
            assert texts(stored.conversation()) == self.known[stored.id][1]
            while stored is not None:
                held[id(stored)] = stored
                stored = stored.parent
        assert self.store.num_bytes == sum(stored.num_bytes for stored in held.values()) <= 30_000
        assert len(self.store) <= 5

    def _alive(self, owner):
        alive = []
        for name, (of, _) in self.known.items():
            try:
                self.store.get(owner, name)
            except ResponseNotFound:
                continue
            assert of == owner
            alive.append(name)
        return alive


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
