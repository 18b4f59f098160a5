"""The form of an answer that must be, or may hold, tool calls: structural tags in the model's own format.

What a model was not trained to write for us to read back, or what no tag can say, is written as a list in JSON.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.structured_outputs import StructuredOutputsParams

JSON_LIST = "json_list"
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
Layout = dict[str, Any]


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of its arguments; None: it takes none.
        strict: its arguments follow the schema without exception.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of its arguments, which are an object always."""
        return {"type": "object", **(NO_ARGUMENTS if self.parameters is None else self.parameters)}


class CallForm(msgspec.Struct, frozen=True, kw_only=True):
    """How a format writes calls.

    Attributes:
        begin: what stands before the arguments; `NAME` is the function's, and `"NAME"` its JSON.
        end: what stands behind them.
        separator: what stands between two calls.
        before, after: what stands around all calls.
        trigger: the beginning of `begin` that nothing but a call begins with, None if there is no such thing.
    """

    begin: str
    end: str
    separator: str
    before: str = ""
    after: str = ""
    trigger: str | None = None

    def written(self, name: str, arguments: str) -> str:
        """One call as text."""
        return f"{self._begin(name)}{arguments}{self.end}"

    def layout(self, tools: Sequence[FunctionTool], *, several: bool) -> Layout:
        """One call or, if `several`, any number of them, and nothing else."""
        calls: Layout = {
            "type": "tags_with_separator",
            "tags": [self._tag(tool, tool.schema) for tool in tools],
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": not several,
        }
        around = [{"type": "const_string", "value": text} if text else None for text in (self.before, self.after)]
        elements = [element for element in (around[0], calls, around[1]) if element is not None]
        return calls if len(elements) == 1 else {"type": "sequence", "elements": elements}

    def layout_in_text(self, tools: Sequence[FunctionTool], *, several: bool) -> Layout:
        """Text that may hold calls, whose arguments follow the schemas of the strict tools."""
        assert self.trigger is not None, "asked before"
        anything = {"type": "object"}
        return {
            "type": "triggered_tags",
            "triggers": [self.trigger],
            "tags": [self._tag(tool, tool.schema if tool.strict else anything) for tool in tools],
            "stop_after_first": not several,
        }

    def _tag(self, tool: FunctionTool, schema: Mapping[str, Any]) -> Layout:
        return {
            "begin": self._begin(tool.name),
            "content": {"type": "json_schema", "json_schema": schema},
            "end": self.end,
        }

    def _begin(self, name: str) -> str:
        return self.begin.replace('"NAME"', json.dumps(name, ensure_ascii=False)).replace("NAME", name)


CALL_FORMS: Mapping[str, CallForm] = {
    "hermes": CallForm(
        begin='<tool_call>\n{"name": "NAME", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
    ),
    "llama3_json": CallForm(begin='{"name": "NAME", "parameters": ', end="}", separator="; "),
    "deepseek_v31": CallForm(
        before="<｜tool▁calls▁begin｜>",  # noqa: RUF001
        begin="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",  # noqa: RUF001
        end="<｜tool▁call▁end｜>",  # noqa: RUF001
        separator="",
        after="<｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    JSON_LIST: CallForm(begin='{"name": "NAME", "parameters": ', end="}", separator=", ", before="[", after="]"),
}


def form_of_calls(
    tool_format: str, tools: Sequence[FunctionTool], *, several: bool, param: str
) -> StructuredOutputsParams:
    """Calls and nothing else.

    Args:
        tool_format: one of `CALL_FORMS`.
        param: the request field that asks for it.
    """
    return _tag(CALL_FORMS[tool_format].layout(tools, several=several), param)


def form_of_text_with_calls(
    tool_format: str,
    tools: Sequence[FunctionTool],
    answer: StructuredOutputsParams | None,
    *,
    several: bool,
) -> StructuredOutputsParams | None:
    """Calls where the model wants to make some, else text, in the form `answer` if there is one; None for any text.

    Raises:
        InvalidRequest: that form cannot be had beside tools.
    """
    form = CALL_FORMS.get(tool_format)
    if answer is not None:
        if form is None:
            raise InvalidRequest(
                f"the form of an answer cannot be had beside tools in the format {tool_format}; leave one of them out, "
                'or set tool_choice to "none" or "required"',
                param="tool_choice",
            )
        layouts = [form.layout(tools, several=several), _layout(answer)]
        return _tag({"type": "or", "elements": layouts}, answer.param)
    if form is None or form.trigger is None or not any(tool.strict for tool in tools):
        return None
    return _tag(form.layout_in_text(tools, several=several), "tools")


def _layout(answer: StructuredOutputsParams) -> Layout:
    """The form of an answer as a part of a structural tag."""
    match answer.kind:
        case "json":
            schema = json.loads(answer.json) if isinstance(answer.json, str) else answer.json
            return {"type": "json_schema", "json_schema": {} if schema is True else schema}
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "regex":
            return {"type": "regex", "pattern": answer.regex}
        case "choice":
            options = [{"type": "const_string", "value": text} for text in answer.choice or ()]
            return {"type": "or", "elements": options}
        case "grammar":
            return {"type": "grammar", "grammar": answer.grammar}
    raise InvalidRequest("a structural tag cannot be had beside tools; leave one of them out", param=answer.param)


def _tag(layout: Layout, param: str) -> StructuredOutputsParams:
    document = {"type": "structural_tag", "format": layout}
    return StructuredOutputsParams(structural_tag=json.dumps(document, ensure_ascii=False), param=param)
