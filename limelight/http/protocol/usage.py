"""Token counts on the wire, their sum over the requests behind one response, and their course while it streams."""

from collections.abc import Iterable

import msgspec

from limelight.generation import Delta, Usage
from limelight.http.protocol.sampling import GenerationFields


class PromptDetails(msgspec.Struct, frozen=True):
    """`prompt_tokens_details`."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """`completion_tokens_details`: tokens of reasoning, and what became of those guessed by speculative decoding."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageObject(msgspec.Struct, frozen=True, kw_only=True):
    """`usage`. Running counts in a stream leave the details out: they are known at the end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | msgspec.UnsetType | None = msgspec.UNSET
    completion_tokens_details: CompletionDetails | msgspec.UnsetType | None = msgspec.UNSET


ChunkUsage = UsageObject | msgspec.UnsetType | None
"""`usage` of a chunk: left out, or null where a usage chunk will follow, or the counts so far."""


def usage_object(usages: Iterable[Usage]) -> UsageObject:
    """The sum of `usages`, one per prompt."""
    counted = list(usages)
    prompt_tokens = sum(usage.prompt_tokens for usage in counted)
    completion_tokens = sum(usage.completion_tokens for usage in counted)
    return UsageObject(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptDetails(sum(usage.cached_tokens for usage in counted)),
        completion_tokens_details=CompletionDetails(
            sum(usage.reasoning_tokens for usage in counted),
            sum(usage.accepted_prediction_tokens for usage in counted),
            sum(usage.rejected_prediction_tokens for usage in counted),
        ),
    )


class UsageMeter:
    """Counts the tokens of a stream.

    Args:
        fields: say whether the client wants a usage chunk, or counts on every chunk.
    """

    def __init__(self, fields: GenerationFields) -> None:
        self._include = fields.include_usage
        self._continuous = fields.continuous_usage
        self._prompt_tokens: dict[int, int] = {}
        self._completion_tokens = 0
        self._final: list[Usage] = []

    def count(self, number: int, prompt_tokens: int, delta: Delta) -> ChunkUsage:
        """Take in what request `number` has generated; returns the `usage` of the chunks that say so."""
        self._prompt_tokens[number] = prompt_tokens
        self._completion_tokens += len(delta.token_ids)
        if delta.usage is not None:
            self._final.append(delta.usage)
        if not self._continuous:
            return None if self._include else msgspec.UNSET
        prompts = sum(self._prompt_tokens.values())
        return UsageObject(
            prompt_tokens=prompts,
            completion_tokens=self._completion_tokens,
            total_tokens=prompts + self._completion_tokens,
        )

    def final(self) -> UsageObject | msgspec.UnsetType:
        """The counts for the last chunk, left out if the client does not want them."""
        return usage_object(self._final) if self._include else msgspec.UNSET
