"""One thing that was looked at, and what to do about it."""

import threading
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

import msgspec

Answer = TypeVar("Answer")


class State(Enum):
    """What a finding means: `PROBLEM` is what keeps a model from being served; a `NOTE` is worth knowing."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """What was found of one subject, as one sentence.

    Attributes:
        subject: what was looked at, in a word or two.
        text: what is the case.
        advice: what to do about it; None where there is nothing to do.
    """

    subject: str
    state: State
    text: str
    advice: str | None = None


class NoAnswer(Exception):
    """A question was not answered in time."""


def within(seconds: float, question: Callable[[], Answer]) -> Answer:
    """The answer of a question that may hang, such as one that the network is asked; its thread is left behind then.

    Raises:
        NoAnswer: it took longer.
        Exception: whatever the question raised.
    """
    answers: list[Answer] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # noqa: BLE001 (crosses to the thread that asked)
            failures.append(error)

    thread = threading.Thread(target=ask, name="limelight-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise NoAnswer(f"no answer within {seconds:g} s")
    return answers[0]


def publishable(text: str, environment: Mapping[str, str]) -> str:
    """`text` with `~` for the user's home, whose path may be a name, and without the address of a hub of one's own."""
    endpoint = environment.get("HF_ENDPOINT", "").rstrip("/")
    if endpoint:
        text = text.replace(endpoint, "HF_ENDPOINT")
    try:
        home = str(Path.home())
    except RuntimeError:  # there is none
        return text
    return text if home == "/" else text.replace(home, "~")
