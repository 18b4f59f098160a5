"""The way to the hub: there, away, silent, switched off; the room for downloads."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from limelight.doctor.finding import Finding, NoAnswer, State, publishable, within
from limelight.doctor.hub import disk_finding, hub_finding, token_finding
from tests.models.hub.hub_server import running_hub


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def closed() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def asked(endpoint: str, *, needed: bool = False, seconds: float = 30.0, **environment: str) -> Finding:
    return hub_finding(needed=needed, environment=environment, endpoint=endpoint, seconds=seconds)


def test_a_hub_that_answers_is_there() -> None:
    with running_hub({}) as hub:
        assert asked(hub.endpoint) == Finding("hub", State.OK, "huggingface.co answers")


@pytest.mark.parametrize(("needed", "state"), [(True, State.PROBLEM), (False, State.NOTE)])
def test_one_that_is_away_matters_if_it_is_needed(needed: bool, state: State) -> None:
    found = asked(closed(), needed=needed)
    assert found.state is state
    assert "cannot be reached" in found.text
    assert found.advice == "check the network"


def test_one_that_is_silent_is_given_up(silent: str) -> None:
    found = asked(silent, seconds=0.5)
    assert found.state is State.NOTE
    assert found.advice


def test_a_mirror_is_not_told_by_its_name() -> None:
    found = asked(closed(), HF_ENDPOINT="https://hub.intern.example")
    assert "the hub that HF_ENDPOINT names" in found.text
    assert "127.0.0.1" not in found.text


def test_offline_mode_asks_nobody(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert asked(silent).state is State.NOTE
    found = asked(silent, needed=True)
    assert (found.state, found.advice) == (State.PROBLEM, "unset HF_HUB_OFFLINE")


def test_a_token_is_told_of_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    assert "hf_secret" not in token_finding().text
    assert "there is one" in token_finding().text
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert "there is none" in token_finding().text


@pytest.mark.parametrize(
    ("free", "needed", "state"),
    [(10 * 2**30, 0, State.OK), (2**30, 0, State.NOTE), (2**30, 2**31, State.PROBLEM), (2**33, 2**31, State.OK)],
)
def test_room_is_compared_with_what_the_model_takes(
    free: int, needed: int, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(free * 2, free, free))  # type: ignore[attr-defined]
    assert disk_finding(tmp_path / "not" / "there", needed_bytes=needed).state is state


def test_a_cache_that_cannot_be_written_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert disk_finding(tmp_path).state is State.NOTE
    assert disk_finding(tmp_path, needed_bytes=1).state is State.PROBLEM


def test_a_question_has_a_bound_and_its_failures_arrive() -> None:
    release = threading.Event()
    with pytest.raises(NoAnswer):
        within(0.1, release.wait)
    release.set()
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 / 0)
    assert within(60, lambda: None) is None


def test_homes_and_hubs_are_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jane.doe")
    text = "/home/jane.doe/.cache is full; https://hub.intern/ cannot be reached"
    shown = publishable(text, {"HF_ENDPOINT": "https://hub.intern/"})
    assert shown == "~/.cache is full; HF_ENDPOINT/ cannot be reached"
