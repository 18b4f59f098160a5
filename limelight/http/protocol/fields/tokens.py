"""Rows of `/tokenize` and `/detokenize`."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, refused, works
from limelight.http.protocol.fields.wording import TEXT_ONLY

_MODEL = {"model": works("may be left out: there is one tokenizer")}

TOKENIZE_FIELDS: Mapping[str, Field] = {
    **_MODEL,
    "prompt": works("a text; or messages"),
    "messages": works("a conversation, rendered as for a chat; or prompt"),
    "tools": works("with messages: handed to the chat template"),
    "add_special_tokens": works("true for a prompt, false for messages unless given"),
    "return_token_strs": works("token_strs: the text of each token"),
    "add_generation_prompt": works("with messages"),
    "continue_final_message": works("with messages"),
    "chat_template": works("with messages; refused without --trust-request-chat-template"),
    "chat_template_kwargs": works("with messages"),
    "media_io_kwargs": refused(TEXT_ONLY),
    "mm_processor_kwargs": refused(TEXT_ONLY),
}

DETOKENIZE_FIELDS: Mapping[str, Field] = {**_MODEL, "tokens": works("token ids")}
