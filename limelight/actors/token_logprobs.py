"""Log-probabilities of token ids -> what clients read: with the tokens' own text and bytes."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import anyio.lowlevel

from limelight.generation import AlternativeToken, TokenLogprob
from limelight.models.loaded_model import Vocabulary
from limelight.step import SampledLogprobs

SCORES_AT_ONCE = 64
"""A fraction of a millisecond's work."""


def token_logprob(
    vocabulary: Vocabulary,
    token_id: int,
    found: SampledLogprobs,
    asked_token_ids: Sequence[int] = (),
    is_hidden: Callable[[int], bool] = lambda _token_id: False,
) -> TokenLogprob:
    """What is told of one position. Tokens that `is_hidden` add no bytes to the text."""

    def alternatives(tokens: Iterable[tuple[int, float]]) -> tuple[AlternativeToken, ...]:
        return tuple([AlternativeToken(token_id, *written(token_id), logprob) for token_id, logprob in tokens])

    def written(token_id: int) -> tuple[str, bytes]:
        raw = vocabulary.token_bytes(token_id)
        return raw.decode("utf-8", "replace"), b"" if is_hidden(token_id) else raw

    token, raw = written(token_id)
    return TokenLogprob(
        token_id=token_id,
        token=token,
        bytes=raw,
        logprob=found.logprob,
        top=alternatives(zip(found.top_token_ids, found.top_logprobs, strict=True)),
        asked=alternatives(zip(asked_token_ids, found.asked, strict=True)) if asked_token_ids else (),
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
