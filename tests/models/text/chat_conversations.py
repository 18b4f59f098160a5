"""Templates in the manner of well-known families, conversations for them, and both ways to render these."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

from limelight.generation import ChatPrompt
from limelight.models.text.chat_format import JinjaChatFormat

FAMILIES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parent / "chat_templates").iterdir())
}
"""Templates in the manner of the best-known families, written for these tests."""
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Hi <b>there</b> & \"you\" 'all', 你好 😀"}
ASSISTANT = {"role": "assistant", "content": "  Hello!\n\n```py\nx = {}\n```  "}
SYSTEM = {"role": "system", "content": "Be brief."}
AGAIN = {"role": "user", "content": " And then?\n"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of <city> in °C",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "12 °C"}
CONVERSATIONS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, AGAIN],
    "system and turns": [SYSTEM, USER, ASSISTANT, AGAIN],
    "ends with assistant": [USER, ASSISTANT],
    "tools": [USER, CALLING, RESULT, AGAIN],
    "reasoning": [USER, {**ASSISTANT, "reasoning_content": "Let me think.\n"}],
    "wrong order": [ASSISTANT, USER],
    "two users": [USER, AGAIN],
    "other role": [USER, {"role": "narrator", "content": "Meanwhile"}],
}
Render = Callable[..., str]


def rendering_by_transformers() -> Render:
    """`apply_chat_template` of a tokenizer with the same special tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocab={"a": 0}, merges=[])), **SPECIAL_TOKENS)

    def render(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
        return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)

    return render


def prompt(
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    tools: list[dict[str, Any]] | None = None,
    **template_arguments: Any,
) -> ChatPrompt:
    """A prompt; other names are template arguments."""
    return ChatPrompt(
        messages=tuple(messages),
        tools=None if tools is None else tuple(tools),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_arguments=template_arguments,
    )


def render(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    """What Limelight renders."""
    return _chat_format(template).render(prompt(messages, **options))


@cache
def _chat_format(template: str) -> JinjaChatFormat:
    """Compiled once, as transformers compiles a template once."""
    return JinjaChatFormat(template, SPECIAL_TOKENS)
