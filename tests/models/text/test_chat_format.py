"""The prompt is what transformers would render; refusals keep the template's own words."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from limelight.errors import CheckpointError, InvalidRequest
from limelight.generation import ChatPrompt
from limelight.models.text.chat_format import JinjaChatFormat, chat_format_from_gguf, load_chat_format
from tests.models.text.chat_conversations import (
    AGAIN,
    ASSISTANT,
    CALL,
    CALLING,
    CONVERSATIONS,
    FAMILIES,
    RESULT,
    SPECIAL_TOKENS,
    TOOLS,
    USER,
    Render,
    prompt,
    render,
    rendering_by_transformers,
)

CHATML, LLAMA2, LLAMA31 = FAMILIES["chatml"], FAMILIES["llama2"], FAMILIES["llama31"]
MISTRAL, PARTS, QWEN = FAMILIES["mistral"], FAMILIES["parts"], FAMILIES["qwen"]


@pytest.fixture(scope="module")
def transformers_render() -> Render:
    return rendering_by_transformers()


@pytest.mark.parametrize(
    "template",
    [
        "{{ {'b': '<é>', 'a': [1, none, true]} | tojson }}",
        "{{ {'b': '<é>', 'a': 1} | tojson(indent=2, sort_keys=true) }}",
        "{{ {'b': 'é'} | tojson(ensure_ascii=true, separators=(',', ':')) }}",
        "  {% if true %}\n    yes\n  {% endif %}\n  end\n",
        "{% for i in 'abc' %}{% if i == 'a' %}{% continue %}{% endif %}{{ i }}{% break %}{% endfor %}",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{{ undefined_name }}|{{ bos_token }}|{{ unk_token is defined }}|{{ documents is none }}",
        "{{ messages[0]['content'].upper() }}{{ messages | length }}",
        "{{ raise_exception is defined }} {{ strftime_now is defined }}",
        "{%- macro m(x) -%} [{{ x }}] {%- endmacro %}{{ m(messages[0].role) }} {{ namespace(a=1).a }}",
    ],
)
def test_extensions_filters_and_whitespace_are_those_of_transformers(
    template: str, transformers_render: Render
) -> None:
    assert render(template, [USER]) == transformers_render(template, [USER])


def test_refusals_keep_the_words_of_the_template() -> None:
    with pytest.raises(InvalidRequest, match="Conversation roles must alternate user/assistant") as caught:
        render(LLAMA2, [ASSISTANT])

    assert caught.value.status == 400
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[5].content }}", "no element 5|undefined"),
        ("{{ bos_token.nothing.more }}", "nothing"),
        ("{{ undefined_name | tojson }}", "not JSON serializable"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_a_template_that_fails_on_the_messages_is_a_client_error(template: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        render(template, [USER])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(200000) | list | length }}",
        "{% for i in range(90000) %}{{ 'x' * 9000 }}{% endfor %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
    ids=["attributes", "mutation", "range", "length", "globals"],
)
def test_a_template_stays_in_its_sandbox(template: str) -> None:
    with pytest.raises(InvalidRequest):
        render(template, [USER])


@pytest.mark.parametrize("source", ["{% if %}", "{{ a", "{% unknown %}", "{% generation %}"])
def test_an_invalid_template_is_reported_and_refuses_conversations_only(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    chat_format = JinjaChatFormat(source)
    assert "not valid Jinja (line 1" in caplog.text
    with pytest.raises(InvalidRequest, match=r"not valid Jinja \(line 1.*/v1/completions"):
        chat_format.render(prompt([USER]))


def test_a_valid_template_beside_an_invalid_one_is_used() -> None:
    chat_format = JinjaChatFormat({"default": CHATML, "tool_use": "{% if %}"})
    assert chat_format.render(prompt([USER]))


@pytest.mark.parametrize("templates", [None, {}, {"tool_use": CHATML}])
def test_without_a_template_the_advice_is_to_complete_text(templates: Mapping[str, str] | None) -> None:
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        JinjaChatFormat(templates).render(prompt([USER]))


def test_tools_choose_the_tool_template() -> None:
    chat_format = JinjaChatFormat({"default": "plain", "tool_use": "tools: {{ tools | length }}"})

    assert chat_format.render(prompt([USER])) == "plain"
    assert chat_format.render(prompt([USER], tools=TOOLS)) == "tools: 1"


def test_tools_fall_back_to_the_default_template() -> None:
    assert JinjaChatFormat({"default": "plain"}).render(prompt([USER], tools=TOOLS)) == "plain"


@pytest.mark.parametrize("template", [CHATML, QWEN, LLAMA31], ids=["chatml", "qwen", "llama31"])
@pytest.mark.parametrize("extra", [{}, {"tool_calls": [CALL]}], ids=["text", "tool call"])
def test_null_absent_and_empty_content_are_the_same(template: str, extra: Mapping[str, Any]) -> None:
    variants = [{"content": None}, {}, {"content": ""}]

    texts = {render(template, [USER, {"role": "assistant", **content, **extra}, AGAIN]) for content in variants}

    assert len(texts) == 1
    assert "None" not in texts.pop()


def test_a_tool_call_without_content_is_kept() -> None:
    text = render(QWEN, [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT])

    assert text.count('"weather"') == 1


@pytest.mark.parametrize("template", [QWEN, LLAMA31], ids=["qwen", "llama31"])
def test_tool_arguments_may_be_a_json_string(template: str) -> None:
    function = {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}
    as_string = {**CALLING, "tool_calls": [{**CALL, "function": function}]}

    assert render(template, [USER, as_string]) == render(template, [USER, CALLING])


@pytest.mark.parametrize("arguments", ["not json", "[1]", "{" * 10_000])
def test_tool_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    call = {**CALL, "function": {"name": "weather", "arguments": arguments}}

    assert json.dumps(arguments) in render(QWEN, [USER, {**CALLING, "tool_calls": [call]}])


TEXT_PARTS = [{"type": "text", "text": "The password is 7431."}, {"type": "text", "text": "Repeat it."}]


def test_parts_are_joined_for_templates_that_take_strings() -> None:
    joined = {"role": "user", "content": "The password is 7431.\nRepeat it."}

    assert render(CHATML, [{"role": "user", "content": TEXT_PARTS}]) == render(CHATML, [joined])


@pytest.mark.parametrize("template", FAMILIES.values(), ids=FAMILIES)
def test_a_single_part_is_the_same_as_its_text(template: str) -> None:
    parts = [{"type": "text", "text": USER["content"]}]

    assert render(template, [{"role": "user", "content": parts}]) == render(template, [USER])


@pytest.mark.parametrize("parts", [[], [{"type": "text", "text": ""}], [""]])
def test_empty_parts_are_the_same_as_empty_text(parts: list[Any]) -> None:
    for template in (CHATML, PARTS):
        assert render(template, [{"role": "user", "content": parts}]) == render(template, [{**USER, "content": ""}])


def test_parts_reach_templates_that_loop_over_them() -> None:
    assert render(PARTS, [{"role": "user", "content": TEXT_PARTS}]) == (
        "<|user|>The password is 7431.Repeat it.<|end|>"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{% for p in messages[0].content %}{{ p.text }};{% endfor %}",
        "{% set c = messages[0]['content'] %}{% for p in c | selectattr('type') %}{{ p.text }};{% endfor %}",
        "{% macro m(content) %}{% for p in content %}{{ p.text }};{%endfor%}{%endmacro%}{{ m(messages[0].content) }}",
        "{% for p in (messages[0].content if true else []) %}{{ p.text }};{% endfor %}",
    ],
    ids=["direct", "assigned", "macro", "conditional"],
)
def test_a_loop_over_content_is_recognised_in_its_usual_forms(template: str) -> None:
    assert render(template, [{"role": "user", "content": TEXT_PARTS}]) == "The password is 7431.;Repeat it.;"


def test_a_refusal_part_is_text() -> None:
    parts = [{"type": "refusal", "refusal": "I cannot."}]

    assert "I cannot." in render(CHATML, [USER, {"role": "assistant", "content": parts}])


@pytest.mark.parametrize("template", [CHATML, PARTS], ids=["strings", "parts"])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "text"},
        {"text": "no type"},
        7,
    ],
    ids=["image", "audio", "no text", "no type", "number"],
)
def test_other_parts_are_refused_by_their_place(template: str, part: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(template, [USER, {"role": "user", "content": [{"type": "text", "text": "what is it?"}, part]}])

    assert caught.value.param == "messages[1].content[1]"


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="messages is empty"):
        render(CHATML, [])


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="JSON") as caught:
        render(CHATML, [{"role": "user", "content": "x", "extra": object()}])

    assert caught.value.param == "messages[0].extra"


def test_endless_nesting_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    message = {"role": "user", "content": "x", "extra": deep}
    try:
        with pytest.raises(InvalidRequest, match="nest too deeply"):
            render(CHATML, [message])
    finally:
        while isinstance(deep, list):  # taken apart from outside in; freeing it whole would recurse
            deep = deep.pop()


def test_messages_are_left_as_they_were() -> None:
    messages = [USER, {**ASSISTANT, "tool_calls": [CALL], "content": None}, {"role": "user", "content": TEXT_PARTS}]
    before = json.dumps(messages)

    render(PARTS, messages, continue_final_message=True)

    assert json.dumps(messages) == before


def test_the_date_is_that_of_the_given_clock() -> None:
    chat_format = JinjaChatFormat(LLAMA31, SPECIAL_TOKENS, now=lambda: datetime(2031, 5, 6, tzinfo=UTC))

    assert "Today Date: 06 May 2031" in chat_format.render(prompt([USER]))


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_template_arguments_cannot_replace_the_request(name: str) -> None:
    chat_prompt = ChatPrompt(messages=(USER,), template_arguments={name: []})

    with pytest.raises(InvalidRequest) as caught:
        JinjaChatFormat(CHATML).render(chat_prompt)

    assert caught.value.param == "chat_template_kwargs"


def test_a_final_message_and_a_new_one_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="exclude"):
        render(CHATML, [USER, ASSISTANT], add_generation_prompt=True, continue_final_message=True)


def test_a_continued_message_ends_the_prompt() -> None:
    text = render(CHATML, [USER, {"role": "assistant", "content": "The sky is"}], continue_final_message=True)

    assert text.endswith("<|im_start|>assistant\nThe sky is")


def test_a_message_that_the_template_drops_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        render("{{ messages[0].content }}", [USER, ASSISTANT], continue_final_message=True)


def write(folder: Path, files: Mapping[str, object]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
TOKENS = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"chat_template.jinja": "A {{ bos_token }}", "tokenizer_config.json": TOKENS}, "A <s>", id="file"),
        pytest.param(
            {"tokenizer_config.json": {**TOKENS, "chat_template": "B {{ eos_token }}"}}, "B </s>", id="config"
        ),
        pytest.param(
            {"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "B"}}, "A", id="file over config"
        ),
        pytest.param({"tokenizer_config.json": {"chat_template": NAMED}}, "plain", id="named"),
        pytest.param(
            {"chat_template.jinja": "A{{ bos_token }}", "special_tokens_map.json": {"bos_token": "<s>"}},
            "A<s>",
            id="special tokens map",
        ),
    ],
)
def test_templates_are_found_where_models_keep_them(tmp_path: Path, files: Mapping[str, object], expected: str) -> None:
    assert load_chat_format(write(tmp_path, files)).render(prompt([USER])) == expected


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"chat_template": NAMED}},
        {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools"},
    ],
    ids=["list", "files"],
)
def test_named_templates_serve_tools(tmp_path: Path, files: Mapping[str, object]) -> None:
    chat_format = load_chat_format(write(tmp_path, files))

    assert chat_format.render(prompt([USER], tools=TOOLS)) == "tools"
    assert chat_format.render(prompt([USER])) == "plain"


def test_a_folder_without_a_template_loads(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        load_chat_format(tmp_path).render(prompt([USER]))


@pytest.mark.parametrize("template", [7, [{"name": "default"}], ["x"]])
def test_a_malformed_template_entry_is_named(tmp_path: Path, template: object) -> None:
    with pytest.raises(CheckpointError, match="chat_template"):
        load_chat_format(write(tmp_path, {"tokenizer_config.json": {"chat_template": template}}))


def test_a_template_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")

    with pytest.raises(CheckpointError, match="chat template"):
        load_chat_format(tmp_path)


def test_a_gguf_file_brings_its_templates_and_tokens() -> None:
    chat_format = chat_format_from_gguf(
        {
            "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
            "tokenizer.chat_template.tool_use": "tools",
            "tokenizer.chat_templates": ["tool_use"],
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )

    assert chat_format.render(prompt([{"role": "user", "content": "hi"}])) == "<s>hi</s>"
    assert chat_format.render(prompt([USER], tools=TOOLS)) == "tools"


def test_a_gguf_file_may_have_no_template() -> None:
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        chat_format_from_gguf({}).render(prompt([USER]))


def test_mistral_names_the_role_it_refuses() -> None:
    with pytest.raises(InvalidRequest, match="got narrator"):
        render(MISTRAL, CONVERSATIONS["other role"])
