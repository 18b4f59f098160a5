"""Log-probabilities of token ids -> what clients read: with the tokens' own text and bytes."""

from collections.abc import AsyncIterator, Iterable, Sequence

import anyio.lowlevel

from limelight.generation import AlternativeToken, TokenLogprob
from limelight.models.loaded_model import Vocabulary
from limelight.step import SampledLogprobs

SCORES_AT_ONCE = 64
"""A fraction of a millisecond's work."""


def token_logprob(
    vocabulary: Vocabulary, token_id: int, found: SampledLogprobs, asked_token_ids: Sequence[int] = ()
) -> TokenLogprob:
    """What is told of one position."""
    raw = vocabulary.token_bytes(token_id)
    return TokenLogprob(
        token_id=token_id,
        token=raw.decode("utf-8", "replace"),
        bytes=raw,
        logprob=found.logprob,
        top=_alternatives(vocabulary, zip(found.top_token_ids, found.top_logprobs, strict=True)),
        asked=_alternatives(vocabulary, zip(asked_token_ids, found.asked, strict=True)) if asked_token_ids else (),
        rank=found.rank,
    )


async def prompt_logprobs(
    vocabulary: Vocabulary, token_ids: Sequence[int], scores: Sequence[SampledLogprobs]
) -> AsyncIterator[TokenLogprob | None]:
    """The same for each token of a prompt, None for the first; lets others run between a few and the next few."""
    yield None
    for number, (token_id, found) in enumerate(zip(token_ids[1:], scores, strict=True), start=1):
        if number % SCORES_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
        yield token_logprob(vocabulary, token_id, found)


def _alternatives(vocabulary: Vocabulary, tokens: Iterable[tuple[int, float]]) -> tuple[AlternativeToken, ...]:
    return tuple([_alternative(vocabulary, token_id, logprob) for token_id, logprob in tokens])


def _alternative(vocabulary: Vocabulary, token_id: int, logprob: float) -> AlternativeToken:
    raw = vocabulary.token_bytes(token_id)
    return AlternativeToken(token_id, raw.decode("utf-8", "replace"), raw, logprob)
