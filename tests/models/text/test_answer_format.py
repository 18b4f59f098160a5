"""What a chat template tells of the answers that its model was trained to write."""

import pytest

from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.models.text.answer_format import find_answer_format
from limelight.models.text.chat_format import JinjaChatFormat
from limelight.parsing.answer_format import ANALYSIS, BRACKETS, THINK, AnswerFormat
from limelight.testing import END, ByteVocabulary
from tests.models.text.chat_conversations import FAMILIES

TEMPLATES = {
    "deepseek_v31": "{{ tools }}<｜tool▁calls▁begin｜>{% if thinking %}<think>{% else %}</think>{% endif %}",
    "deepseek_v3": "{{ tools }}<｜tool▁calls▁begin｜>\n```json\n",
    "qwen3_coder": "{% for tool in tools %}{{ tool }}{% endfor %}<tool_call>\n<function=name>\n<parameter=key>",
    "magistral": "[THINK]{{ reasoning }}[/THINK]{{ tools }}[TOOL_CALLS]name[ARGS]",
    "llama32": '{{ tools }} Answer with {"name": the name, "parameters": an object}',
    "pythonic": "{{ tools }} Answer with [func_name1(name1=value1), func_name2()]",
    "glm": "{{ tools }}<tool_call>name<arg_key>key</arg_key><think></think>",
    "mentions": "{{ messages }} never write <tool_call>",
}


def find(*templates: str, **settings: str) -> AnswerFormat:
    chat_format = JinjaChatFormat(dict(zip(("default", "tool_use"), templates, strict=False)))
    config = EngineConfig(**settings)
    return find_answer_format(config, chat_format.sources, chat_format.variables, ByteVocabulary())


@pytest.mark.parametrize(
    ("family", "tool_format", "reasoning"),
    [
        ("qwen", "hermes", THINK),
        ("falcon", "hermes", None),
        ("llama31", "llama3_json", None),
        ("tekken", "mistral", None),
        ("harmony", "openai", ANALYSIS),
        ("deepseek_r1", None, THINK),
        ("granite", None, None),
        ("gemma", None, None),
    ],
)
def test_families(family, tool_format, reasoning):
    found = find(FAMILIES[family])
    assert (found.tool_format, found.reasoning) == (tool_format, reasoning)


@pytest.mark.parametrize(
    ("name", "tool_format", "reasoning"),
    [
        ("deepseek_v31", "deepseek_v31", THINK),
        ("deepseek_v3", "deepseek_v3", None),
        ("qwen3_coder", "qwen3_coder", None),
        ("magistral", "mistral", BRACKETS),
        ("llama32", "llama3_json", None),
        ("pythonic", "pythonic", None),
        ("glm", None, THINK),
        ("mentions", None, None),
    ],
)
def test_marks(name, tool_format, reasoning):
    found = find(TEMPLATES[name])
    assert (found.tool_format, found.reasoning) == (tool_format, reasoning)
    assert found.renders_tools == (name != "mentions")


def test_a_template_for_tools_counts_and_a_switch_is_found():
    found = find("{{ messages }}{% if enable_thinking %}<think>{% endif %}</think>", "{{ tools }}<tool_call>")
    assert (found.tool_format, found.renders_tools, found.reasoning_switch) == ("hermes", True, "enable_thinking")
    assert find(TEMPLATES["deepseek_v31"]).reasoning_switch == "thinking"
    assert find().reasoning_switch is None


def test_settings_win_over_the_template():
    found = find(TEMPLATES["mentions"], tool_call_parser="hermes", reasoning_parser="qwen3")
    assert (found.tool_format, found.reasoning, found.renders_tools) == ("hermes", THINK, False)
    found = find(TEMPLATES["magistral"], tool_call_parser="none", reasoning_parser="none")
    assert (found.tool_format, found.reasoning) == (None, None)
    with pytest.raises(ConfigError, match="tool_call_parser is 'xml'; use one of auto, none, "):
        EngineConfig(tool_call_parser="xml")


def test_special_tokens_that_are_marks_stay_in_the_text():
    assert find("", tool_call_parser="openai").tool_token_ids == {END}, "<|end|> is a mark of harmony"
    assert find("", tool_call_parser="hermes").tool_token_ids == frozenset()
