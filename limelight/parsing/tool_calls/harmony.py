"""Harmony, the format of gpt-oss: messages in channels.

`<|channel|>analysis<|message|>` is reasoning, `final` and a `commentary` to nobody are text, and a message
`to=functions.NAME` is a call. The reasoning that an answer begins with has been taken out before it comes here; later
ones have not.
"""

import re
from collections.abc import Callable

from limelight.parsing.tool_calls.source import Answer, Source, Steps, copy_until

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MAX_HEADER_CHARACTERS = 512
ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")
RECIPIENT = re.compile(r"\bto=([^\s<]+)")
PREFIX = "functions."


def harmony(source: Source, answer: Answer) -> Steps[None]:
    """Messages, and text outside of them."""
    while (yield from copy_until(source, answer.text, (START, CHANNEL, *ENDS), _all)):
        if (yield from source.skip(ENDS[0])) or (yield from source.skip(ENDS[1])) or (yield from source.skip(ENDS[2])):
            continue
        source.checkpoint()
        header = yield from source.take_until((MESSAGE,), MAX_HEADER_CHARACTERS)
        if header is None:
            source.take(1)  # the mark's bracket: what follows is text
            answer.text(source.since_checkpoint())
            continue
        source.forget()
        source.take(len(MESSAGE))
        yield from copy_until(source, _receiver(header, answer), (*ENDS, START), _all)


def _receiver(header: str, answer: Answer) -> Callable[[str], None]:
    """What takes the content of a message."""
    if recipient := RECIPIENT.search(header):
        answer.call(recipient[1].removeprefix(PREFIX))
        return answer.arguments
    return answer.reasoning if ANALYSIS.search(header) else answer.text


def _all(text: str) -> str:
    return text
