"""The tool formats by name."""

from collections.abc import Callable, Mapping

import msgspec

from limelight.parsing.parts import ToolCallParser
from limelight.parsing.tool_calls import (
    deepseek,
    harmony,
    hermes,
    json_list,
    llama3_json,
    mistral,
    pythonic,
    qwen3_coder,
)
from limelight.parsing.tool_calls.qwen3_coder import Schemas
from limelight.parsing.tool_calls.source import Format, IncrementalParser


class ToolFormat(msgspec.Struct, frozen=True):
    """One way to write calls.

    Attributes:
        format: makes the generator that reads it, for tools with these schemas.
        marks: what must be in the text for it to be read, even where these are special tokens.
        is_whole: it says how all of an answer is written, so that it is read without tools, too.
    """

    format: Callable[[Schemas], Format]
    marks: tuple[str, ...] = ()
    is_whole: bool = False


_HERMES = ToolFormat(lambda _: hermes.hermes, (hermes.BEGIN, hermes.END))
_LLAMA = ToolFormat(lambda _: llama3_json.llama3_json, (llama3_json.TAG,))
_DEEPSEEK = ToolFormat(
    lambda _: deepseek.deepseek,
    (deepseek.CALLS_BEGIN, deepseek.CALLS_END, deepseek.CALL_BEGIN, deepseek.CALL_END, deepseek.SEPARATOR),
)
_PYTHONIC = ToolFormat(lambda _: pythonic.pythonic, (pythonic.BEGIN, pythonic.END))

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": _HERMES,
    "llama3_json": _LLAMA,
    "llama4_pythonic": _PYTHONIC,
    "mistral": ToolFormat(lambda _: mistral.mistral, (mistral.BEGIN, mistral.CALL_ID, mistral.ARGUMENTS)),
    "pythonic": _PYTHONIC,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "qwen3_coder": ToolFormat(qwen3_coder.qwen3_coder, (qwen3_coder.BEGIN, qwen3_coder.END)),
    "openai": ToolFormat(
        lambda _: harmony.harmony,
        (harmony.START, harmony.CHANNEL, harmony.MESSAGE, "<|constrain|>", *harmony.ENDS),
        is_whole=True,
    ),
    "json_list": ToolFormat(lambda _: json_list.json_list),
}
"""Under vLLM's names, where it has the format."""


def new_parser(name: str, schemas: Schemas) -> ToolCallParser:
    """A parser for one choice.

    Args:
        name: one of `TOOL_FORMATS`.
        schemas: name of each function -> JSON schema of its arguments.
    """
    return IncrementalParser(TOOL_FORMATS[name].format(schemas))
