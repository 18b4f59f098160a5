"""The shapes in which offline callers may write a prompt (vLLM's), made into the engine's `Prompt`."""

from collections.abc import Mapping, Sequence
from typing import Any

from limelight.errors import InvalidRequest, UnsupportedField
from limelight.generation import Prompt, TextPrompt, TokensPrompt
from limelight.quoting import quoted

PromptInput = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`."""


def as_list(prompts: PromptInput | Sequence[PromptInput]) -> Sequence[PromptInput]:
    """One prompt becomes a list of one; a flat list of numbers is one prompt of token ids."""
    if isinstance(prompts, str | Mapping) or (prompts and all(isinstance(token, int) for token in prompts)):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def as_prompt(prompt: PromptInput, index: int) -> Prompt:
    """The prompt at position `index` of the caller's list.

    Raises:
        InvalidRequest: it has none of the shapes; `param` names its place in the list.
    """
    where = f"prompts[{index}]"
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if isinstance(prompt, Mapping):
        known = {"prompt", "prompt_token_ids"}
        unknown = [name for name in prompt if name not in known and prompt[name] is not None]
        if unknown:
            raise UnsupportedField(f"{where} has {quoted(unknown[0])}; use 'prompt' or 'prompt_token_ids'", param=where)
        token_ids = prompt.get("prompt_token_ids")
        if token_ids is None:
            text = prompt.get("prompt")
            if not isinstance(text, str):
                raise InvalidRequest(f"{where} has neither a text 'prompt' nor 'prompt_token_ids'", param=where)
            return TextPrompt(text)
        return _tokens(token_ids, where)
    return _tokens(prompt, where)


def _tokens(token_ids: Any, where: str) -> TokensPrompt:
    if not isinstance(token_ids, Sequence) or not all(
        isinstance(token, int) and not isinstance(token, bool) for token in token_ids
    ):
        raise InvalidRequest(f"{where} is {quoted(token_ids)}; use text or a list of token ids", param=where)
    return TokensPrompt(tuple(token_ids))
