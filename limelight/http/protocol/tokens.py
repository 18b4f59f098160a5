"""`/tokenize` and `/detokenize` on the wire, in vLLM's shapes."""

from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.generation import TextPrompt
from limelight.http.conversation import Conversation
from limelight.http.protocol.chat import ChatRequest, chat_conversation
from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.tokens import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from limelight.http.protocol.messages import MESSAGE_FIELDS, Message
from limelight.http.protocol.sampling import Integer
from limelight.http.protocol.tools import ToolDefinition

CHAT_ONLY = ("tools", "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs")


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolDefinition] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[Integer]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a text; `max_model_len`: how many the model's context holds, answer included."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens."""

    prompt: str


TOKENIZE_DECODER = Decoder(TokenizeRequest, TOKENIZE_FIELDS, {"messages": MESSAGE_FIELDS})
DETOKENIZE_DECODER = Decoder(DetokenizeRequest, DETOKENIZE_FIELDS)


def tokenized_prompt(body: TokenizeRequest) -> TextPrompt | Conversation:
    """What is to be encoded.

    Raises:
        InvalidRequest: there is no prompt, there are two, or fields contradict each other.
    """
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt (a text) or messages (a conversation)", param="prompt")
    if body.messages is None:
        for name in CHAT_ONLY:
            if getattr(body, name) is not None:
                raise InvalidRequest(f"{name} needs messages; a prompt is encoded as it is", param=name)
        return TextPrompt(body.prompt or "", body.add_special_tokens is not False)
    chat = ChatRequest(
        model=body.model or "",
        messages=body.messages,
        add_special_tokens=body.add_special_tokens,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=body.tools,
    )
    return chat_conversation(chat)
