"""Rows of `/v1/completions`."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, refused, works
from limelight.http.protocol.fields.generation import GENERATION_FIELDS

COMPLETION_FIELDS: Mapping[str, Field] = {
    **GENERATION_FIELDS,
    "prompt": works("a string, a list of strings, token ids, or a list of token-id lists"),
    "echo": works("with logprobs, those of the prompt are told, too; with max_tokens 0, nothing else is"),
    "add_special_tokens": works("whether the tokenizer adds its own special tokens (a BOS, say) to a text prompt"),
    "response_format": works("text, json_object, json_schema or structural_tag"),
    "suffix": refused("fill-in-the-middle is not served; put the model's own infill markers into the prompt", ""),
    "best_of": refused("ask for n choices with logprobs, and choose among them", 1),
}
