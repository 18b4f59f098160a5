"""A conversation -> the prompt text, by the chat template that comes with the model. Imports no transformers."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from limelight.errors import InvalidRequest
from limelight.generation import ChatPrompt
from limelight.models.fields import Fields
from limelight.models.text.chat_messages import plain, template_messages, with_textual_arguments
from limelight.models.text.chat_template import ChatTemplate, TemplateRefusal, TemplateSyntax
from limelight.models.text.tokenizer_settings import read_tokenizer_settings
from limelight.quoting import explanation, shorten

logger = logging.getLogger(__name__)

CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Written after the final message and found again in the rendered text. The space shows whether the template trims."""
OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")
GGUF_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

MAX_TEMPLATE_CHARACTERS = 32 * 1024
"""Of a template that comes with a request; those of models have up to 20 thousand."""
MAX_FOREIGN_CODE_CHARACTERS = 48 * 1024
"""Of the program that it becomes: Python compiles so much in some 30 ms, during which nobody else runs."""

AS_TEXT = "send the whole prompt as text instead (/v1/completions, `limelight generate`)"
"""What to do without a chat template."""


class JinjaChatFormat:
    """A `ChatFormat` over one Jinja template, or several by name. Renders as transformers' `apply_chat_template`.

    A template that is not valid Jinja does not keep a model from serving plain prompts: it is reported in the log, and
    conversations that need it are refused with the reason.

    Args:
        templates: source, or name -> source; "tool_use" serves requests with tools, "default" the others. None or
            empty: every conversation is refused.
        special_tokens: template variables such as `bos_token`.
        now: the local time, for templates that write today's date.

    Attributes:
        sources: the templates as text, by name.
    """

    def __init__(
        self,
        templates: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC).astimezone(),
    ) -> None:
        named = {"default": templates} if isinstance(templates, str) else dict(templates or {})
        self._templates: dict[str, ChatTemplate] = {}
        self._broken: dict[str, str] = {}
        for name, source in named.items():
            try:
                self._templates[name] = ChatTemplate(source, now=now)
            except TemplateSyntax as error:
                self._broken[name] = (
                    f"the model's chat template is not valid Jinja ({error}); download the model again or correct its "
                    "chat_template.jinja"
                )
                logger.warning("%s; conversations that need it will be refused", self._broken[name])
        self.sources = named
        self._special_tokens = dict(special_tokens or {})
        self._now = now

    @property
    def variables(self) -> frozenset[str]:
        """Names that the templates read and do not define themselves."""
        return frozenset[str]().union(*(template.variables for template in self._templates.values()))

    def render(self, prompt: ChatPrompt) -> str:
        """See `ChatFormat.render`. `param` of an error names the field at fault."""
        template = self._template(prompt)
        if not prompt.messages:
            raise InvalidRequest("messages is empty; send at least one message", param="messages")
        if prompt.continue_final_message and prompt.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other; set one of them to false",
                param="continue_final_message",
            )
        try:
            return self._render(template, prompt)
        except TemplateRefusal as error:
            own = prompt.template is None
            raise InvalidRequest(
                f"the {'model' if own else 'request'}'s chat template refuses the conversation: {explanation(error)}",
                param="messages" if own else "chat_template",
            ) from error
        except RecursionError as error:
            raise InvalidRequest("messages nest too deeply; send a flatter structure", param="messages") from error

    def _render(self, template: ChatTemplate, prompt: ChatPrompt) -> str:
        messages = template_messages(prompt.messages, keep_parts=template.loops_over_content)
        final_text = _mark_final_message(messages[-1]) if prompt.continue_final_message else None
        variables = {
            "documents": None,
            **self._special_tokens,
            **self._arguments(prompt.template_arguments),
            "messages": messages,
            "tools": None if prompt.tools is None else plain(prompt.tools, "tools"),
            "add_generation_prompt": prompt.add_generation_prompt,
        }
        try:
            rendered = template.render(variables)
        except TemplateRefusal:
            textual = with_textual_arguments(messages)
            if textual == messages:
                raise
            rendered = template.render({**variables, "messages": textual})
        return rendered if final_text is None else _cut_after_final_message(rendered, final_text)

    def _template(self, prompt: ChatPrompt) -> ChatTemplate:
        if prompt.template is not None:
            return self._foreign_template(prompt.template)
        wanted = ("tool_use", "default") if prompt.tools else ("default",)
        for name in wanted:
            if name in self._templates:
                return self._templates[name]
            if name in self._broken:
                raise InvalidRequest(
                    f"{self._broken[name]}; {AS_TEXT}",
                    param="messages",
                )
        known = f" (it has only {shorten(', '.join(self._templates))})" if self._templates else ""
        raise InvalidRequest(
            f"the model has no chat template{known}; {AS_TEXT}",
            param="messages",
        )

    def _foreign_template(self, source: str) -> ChatTemplate:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidRequest(
                f"chat_template has {len(source)} characters, at most {MAX_TEMPLATE_CHARACTERS} are allowed",
                param="chat_template",
            )
        try:
            return ChatTemplate(source, now=self._now, max_code_characters=MAX_FOREIGN_CODE_CHARACTERS)
        except TemplateSyntax as error:
            raise InvalidRequest(f"chat_template is not valid Jinja ({error})", param="chat_template") from error

    def _arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        for name in OWN_VARIABLES:
            if name in arguments:
                raise InvalidRequest(
                    f"{name} cannot be a template argument; it is a field of the request itself",
                    param="chat_template_kwargs",
                )
        return {str(name): plain(value, f"chat_template_kwargs.{name}") for name, value in arguments.items()}


def load_chat_format(folder: Path) -> JinjaChatFormat:
    """The chat format of a model folder in Hugging Face layout.

    Raises:
        CheckpointError: a file is unreadable.
    """
    settings = read_tokenizer_settings(folder)
    return JinjaChatFormat(settings.chat_templates, settings.named_tokens)


def chat_format_from_gguf(metadata: Mapping[str, Any]) -> JinjaChatFormat:
    """The chat format in a GGUF file's metadata: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME`.

    Raises:
        CheckpointError: a value is malformed.
    """
    fields = Fields(metadata, "GGUF metadata")
    prefix = "tokenizer.chat_template"
    templates = {
        key.removeprefix(prefix).removeprefix(".") or "default": source
        for key in metadata
        if (key == prefix or key.startswith(f"{prefix}.")) and (source := fields.text(key)) is not None
    }
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    special_tokens = {
        name: tokens[token_id]
        for name, key in GGUF_TOKEN_KEYS.items()
        for token_id in fields.token_ids(f"tokenizer.ggml.{key}", len(tokens))
    }
    return JinjaChatFormat(templates, special_tokens)


def _mark_final_message(message: dict[str, Any]) -> str:
    """Appends the mark to the message's (last) text, and returns that text as it was."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + CONTINUE_MARK
        return content
    if isinstance(content, list) and content:
        text: str = content[-1]["text"]
        message["content"] = [*content[:-1], {**content[-1], "text": text + CONTINUE_MARK}]
        return text
    raise InvalidRequest("continue_final_message needs a final message with text", param="messages")


def _cut_after_final_message(rendered: str, final_text: str) -> str:
    """What stands before the mark; trimmed if the template trimmed the message."""
    mark = CONTINUE_MARK.strip()
    if mark not in rendered or final_text.strip() not in rendered:
        raise InvalidRequest(
            "the model's chat template does not write the final message as it is, so it cannot be continued; "
            "leave out continue_final_message",
            param="continue_final_message",
        )
    position = rendered.rindex(mark)
    kept = rendered[:position]
    return kept if rendered.startswith(CONTINUE_MARK, position) else kept.rstrip()
