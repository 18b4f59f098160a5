"""Control tokens that stand written out in a conversation: kept apart from those that the chat template writes.

A client's text may hold `<|im_end|>` or `<start_of_turn>`, by accident or to pass for somebody else. It is that text,
and must not become the control token. So before the template sees the conversation, a mark goes into every such text,
a character that occurs nowhere in it. The prompt is then encoded with the marks, which break the text, and the tokens
that stand for marks alone are dropped.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from limelight.generation import ChatPrompt

MARKS = tuple(chr(0xF1A00 + number) for number in range(256))
"""From a private use area: no tokenizer knows them, so each becomes tokens of its own."""


@runtime_checkable
class MarksControls(Protocol):
    """A `Vocabulary` that can tell written control tokens from real ones."""

    def mark_controls(self, text: str, mark: str) -> str:
        """`text` with `mark` in every control token that is written out in it."""
        ...

    def encode_marked(self, mark: str, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of `text` without its marks; what they were put into is plain text. Raises as `encode`."""
        ...


def marked_conversation(prompt: ChatPrompt, vocabulary: MarksControls) -> tuple[ChatPrompt, str | None]:
    """The conversation with marks in its written control tokens, and the mark; None: it has none of them."""
    given = {"messages": prompt.messages, "tools": prompt.tools, "template_arguments": prompt.template_arguments}
    texts = list(_texts(given))
    mark = next((mark for mark in MARKS if not any(mark in text for text in texts)), None)
    if mark is None or all(vocabulary.mark_controls(text, mark) == text for text in set(texts)):
        return prompt, None
    marked = _mapped(given, lambda text: vocabulary.mark_controls(text, mark))
    return msgspec.structs.replace(prompt, **marked), mark


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON-like value, the names of fields included."""
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in value.items():
                yield from _texts(key)
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_mapped(item, change) for item in value)
    return value
