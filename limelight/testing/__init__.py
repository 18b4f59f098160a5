"""Scripted models for users' own tests: the real actors, scheduler, HTTP and SSE code in milliseconds, without torch.

`docs/testing.md` shows how. `limelight.testing.fixtures` has the fixtures for pytest.
"""

from limelight.testing.answers import (
    ANSWER_FORMAT,
    Answer,
    Answers,
    Fail,
    FailStep,
    Hang,
    Part,
    Reasoning,
    ToolCall,
    Wait,
)
from limelight.testing.chat_format import PlainChatFormat
from limelight.testing.event_stream import read_stream
from limelight.testing.live_server import LiveServer, live_server
from limelight.testing.model import scripted_engine, scripted_model
from limelight.testing.script import Script, Turn, TurnFailure, babble, echo
from limelight.testing.vocabulary import BEGIN, END, VOCAB_SIZE, ByteVocabulary

__all__ = [
    "ANSWER_FORMAT",
    "BEGIN",
    "END",
    "VOCAB_SIZE",
    "Answer",
    "Answers",
    "ByteVocabulary",
    "Fail",
    "FailStep",
    "Hang",
    "LiveServer",
    "Part",
    "PlainChatFormat",
    "Reasoning",
    "Script",
    "ToolCall",
    "Turn",
    "TurnFailure",
    "Wait",
    "babble",
    "echo",
    "live_server",
    "read_stream",
    "scripted_engine",
    "scripted_model",
]
