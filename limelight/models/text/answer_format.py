"""Finds out how a model writes its answers, by the marks that its chat template writes and looks for."""

from collections.abc import Iterable, Mapping

from limelight.config import EngineConfig
from limelight.generation import ReasoningFormat
from limelight.models.loaded_model import Vocabulary
from limelight.parsing.answer_format import ANALYSIS, BRACKETS, REASONING_FORMATS, THINK, AnswerFormat
from limelight.parsing.tool_calls.formats import TOOL_FORMATS

_TOOL_MARKS: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "<|message|>", "functions")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),  # noqa: RUF001
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),  # noqa: RUF001
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]",)),
    (None, ("<tool_call>", "<arg_key>")),  # GLM's own format, which is not read
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama3_json", ('"name":', '"parameters":')),
)
"""A tool format and what a template that writes it contains; the first that fits counts."""

_SWITCHES = ("enable_thinking", "thinking")


def find_answer_format(
    config: EngineConfig, templates: Mapping[str, str], variables: Iterable[str], vocabulary: Vocabulary
) -> AnswerFormat:
    """The format of a model's answers.

    Args:
        config: whose `tool_call_parser` and `reasoning_parser` win over what is found.
        templates: sources of the model's chat templates by name.
        variables: what these templates read.
    """
    source = templates.get("tool_use", "") + "".join(templates.values())
    read = frozenset(variables)
    tool_format = _tool_format(config.tool_call_parser, source if "tools" in read else "")
    reasoning = _reasoning(config.reasoning_parser, source)
    return AnswerFormat(
        reasoning=reasoning,
        reasoning_switch=next((name for name in _SWITCHES if name in read), None),
        tool_format=tool_format,
        renders_tools="tools" in read,
        renders_calls="tool_calls" in source,
        reasoning_token_ids=_special_token_ids((reasoning.start, reasoning.end) if reasoning else (), vocabulary),
        tool_token_ids=_special_token_ids(TOOL_FORMATS[tool_format].marks if tool_format else (), vocabulary),
    )


def _tool_format(setting: str, source: str) -> str | None:
    if setting != "auto":
        return None if setting == "none" else setting
    return next((name for name, fragments in _TOOL_MARKS if all(part in source for part in fragments)), None)


def _reasoning(setting: str, source: str) -> ReasoningFormat | None:
    if setting != "auto":
        return REASONING_FORMATS.get(setting)
    found = (marks for marks in (ANALYSIS, THINK, BRACKETS) if marks.end in source and marks.start in source)
    return next(found, None)


def _special_token_ids(marks: Iterable[str], vocabulary: Vocabulary) -> frozenset[int]:
    """The special tokens that the marks are written with."""
    encoded = [token_id for mark in marks for token_id in vocabulary.encode(mark, add_special_tokens=False)]
    return frozenset(token_id for token_id in encoded if vocabulary.is_special(token_id))
