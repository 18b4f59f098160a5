"""Answers in parts: text, reasoning and tool calls, with waits, failures and hangs between them."""

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limelight.parsing.answer_format import THINK, AnswerFormat
from limelight.testing.script import Turn, TurnFailure
from limelight.testing.vocabulary import END

ANSWER_FORMAT = AnswerFormat(reasoning=THINK, tool_format="hermes", renders_tools=True, renders_calls=True)
"""How `Answers` writes reasoning and tool calls."""

_ROLE = re.compile(r"^(?:system|developer|user|assistant|tool|function): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True, init=False)
class ToolCall:
    """A call of the tool `name`."""

    name: str
    arguments: Mapping[str, Any]

    def __init__(self, name: str, /, **arguments: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "arguments", arguments)


@dataclass(frozen=True, slots=True)
class Wait:
    """The next token takes so many seconds; as in a real model, everybody's does."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """The request fails here; others go on."""

    reason: str = "the script says so"


@dataclass(frozen=True, slots=True)
class FailStep:
    """The whole forward pass fails here, with every request in it."""

    reason: str = "the script says so"


class Hang:
    """No step ends any more, as on a device that hangs, until `release` or the end of the test's patience.

    Args:
        seconds: the longest time.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        self.reached = threading.Event()
        self._seconds = seconds
        self._released = threading.Event()

    def release(self) -> None:
        """Let it go on, from any thread. It does not hang again."""
        self._released.set()

    def hang(self) -> None:
        """Be here until released; called by the script."""
        self.reached.set()
        self._released.wait(self._seconds)


Part = str | Reasoning | ToolCall | Wait | Fail | FailStep | Hang
Answer = Part | Sequence[Part]


@dataclass(slots=True)
class _Beat:
    """A token, and what happens before it is drawn."""

    token_id: int
    before: list[Wait | Fail | FailStep | Hang] = field(default_factory=list)


class Answers:
    """A script that answers by the last message of a conversation, or by the text of a plain prompt.

    Args:
        answers: regular expression -> answer. The first one found in the message, with its role before it
            (`user: hi`), is given.
        otherwise: the answer to everything else.

    Example:
        Answers({"^tool:": "It is sunny.", "weather": ToolCall("get_weather", city="Seoul"), "slow": ["a", Wait(1)]})
    """

    def __init__(self, answers: Mapping[str, Answer] | None = None, *, otherwise: Answer = "Hello!") -> None:
        self._answers = [
            (re.compile(pattern, re.MULTILINE), _beats(answer)) for pattern, answer in (answers or {}).items()
        ]
        self._otherwise = _beats(otherwise)

    def __call__(self, turn: Turn) -> int:
        """The next token."""
        beats = turn.noted(lambda: self._beats_for(turn))
        beat = beats[min(turn.number, len(beats) - 1)]
        for event in beat.before:
            _happen(event)
        return beat.token_id

    def release(self) -> None:
        """Release every `Hang` of the answers."""
        for beats in (self._otherwise, *(beats for _, beats in self._answers)):
            for event in (event for beat in beats for event in beat.before):
                if isinstance(event, Hang):
                    event.release()

    def _beats_for(self, turn: Turn) -> "list[_Beat]":
        prompt = bytes(token_id for token_id in turn.prompt if token_id < END).decode("utf-8", "replace")
        message = last_message(prompt)
        return next((beats for pattern, beats in self._answers if pattern.search(message)), self._otherwise)


def last_message(prompt: str) -> str:
    """The last message of a prompt by `PlainChatFormat`, with its role; the whole of any other prompt."""
    prompt = prompt.removesuffix("\nassistant:")
    starts = [match.start() for match in _ROLE.finditer(prompt)]
    return prompt[starts[-1] :] if starts else prompt


def _happen(event: Wait | Fail | FailStep | Hang) -> None:
    match event:
        case Wait(seconds):
            time.sleep(seconds)
        case Fail(reason):
            raise TurnFailure(reason)
        case FailStep(reason):
            raise RuntimeError(reason)
        case Hang():
            event.hang()


def _beats(answer: Answer) -> list[_Beat]:
    beats: list[_Beat] = []
    before: list[Wait | Fail | FailStep | Hang] = []
    for token_id in (*_parts([answer] if isinstance(answer, Part) else answer), END):
        if isinstance(token_id, int):
            beats.append(_Beat(token_id, before))
            before = []
        else:
            before.append(token_id)
    return beats


def _parts(parts: Sequence[Part]) -> Iterator[int | Wait | Fail | FailStep | Hang]:
    """Tokens, and what happens between them."""
    for part in parts:
        match part:
            case str():
                yield from part.encode()
            case Reasoning(text):
                yield from f"{THINK.start}{text}{THINK.end}".encode()
            case ToolCall(name, arguments):
                call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
                yield from f"<tool_call>\n{call}\n</tool_call>".encode()
            case _:
                yield part
