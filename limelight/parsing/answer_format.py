"""How a model writes its answers: what marks its reasoning, how it writes tool calls, what its template can do."""

from collections.abc import Mapping

import msgspec

from limelight.generation import ReasoningFormat

THINK = ReasoningFormat("<think>", "</think>")
BRACKETS = ReasoningFormat("[THINK]", "[/THINK]")
ANALYSIS = ReasoningFormat("<|channel|>analysis<|message|>", "<|end|>")

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": THINK,
    "deepseek_v3": THINK,
    "glm45": THINK,
    "mistral": BRACKETS,
    "openai_gptoss": ANALYSIS,
    "qwen3": THINK,
}
"""Under vLLM's names."""


class AnswerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes its answers.

    Attributes:
        reasoning: the marks of its reasoning, or None if it has none that are known.
        reasoning_switch: the variable of its chat template that switches reasoning on and off.
        tool_format: the name of its tool format, or None if it is not known.
        renders_tools: its chat template writes tools into the prompt.
        renders_calls: its chat template writes earlier calls into the prompt.
        reasoning_token_ids, tool_token_ids: special tokens that must be in the text for the marks to be found.
    """

    reasoning: ReasoningFormat | None = None
    reasoning_switch: str | None = None
    tool_format: str | None = None
    renders_tools: bool = False
    renders_calls: bool = False
    reasoning_token_ids: frozenset[int] = frozenset()
    tool_token_ids: frozenset[int] = frozenset()
