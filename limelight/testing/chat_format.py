"""The chat template of scripted models: a line for each message."""

from limelight.errors import InvalidRequest
from limelight.generation import ChatPrompt
from limelight.models.text.chat_format import JinjaChatFormat


class PlainChatFormat:
    """`role: content` lines, or the request's own template.

    The role "forbidden" is refused, as a template's `raise_exception` would.
    """

    def render(self, prompt: ChatPrompt) -> str:
        """The conversation as text, open for the assistant's turn."""
        if prompt.template is not None:
            return JinjaChatFormat(None).render(prompt)
        lines = []
        for message in prompt.messages:
            if message["role"] == "forbidden":
                raise InvalidRequest("the chat template refuses: this role is forbidden", param="messages")
            lines.append(f"{message['role']}: {_plain_text(message.get('content'))}")
        if prompt.continue_final_message:
            return "\n".join(lines)
        return "\n".join([*lines, "assistant:" if prompt.add_generation_prompt else ""])


def _plain_text(content: object) -> str:
    if isinstance(content, list | tuple):
        return "".join(part.get("text", "") for part in content)
    return "" if content is None else str(content)
