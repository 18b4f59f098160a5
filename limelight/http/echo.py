"""The prompt in front of a completion's text, and its log-probabilities in front of those of the text."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from limelight.engine import Engine
from limelight.generation import Delta, TextPrompt, TokenLogprob, TokensPrompt
from limelight.http.protocol.completions import CompletionRequest
from limelight.http.protocol.logprobs import LegacyWriter


class ScoredPrompt(Protocol):
    """A prompt once it has been encoded, and scored if that was asked for."""

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """As the model got it."""
        ...

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """One entry per token, None for the first."""
        ...


class Echo:
    """What each choice of a completion begins with: the request's prompts under `echo`, else nothing."""

    def __init__(
        self, engine: Engine, prompts: Sequence[TextPrompt | TokensPrompt], completion: CompletionRequest
    ) -> None:
        self._engine = engine
        self._num_logprobs = completion.logprobs if completion.echo else None
        self._as_ids = bool(completion.return_tokens_as_token_ids)
        self._texts = [""] * len(prompts)
        if completion.echo:
            skip = completion.skip_special_tokens is not False
            context = engine.model.capacity.max_model_len  # a longer prompt will be refused: its text is not needed
            self._texts = [
                prompt.text
                if isinstance(prompt, TextPrompt)
                else engine.model.vocabulary.decode(prompt.token_ids[:context], skip_special_tokens=skip)
                for prompt in prompts
            ]

    def delta(self, number: int, scored: ScoredPrompt) -> Delta:
        """Prompt `number` as if it had been generated; the first token's entry has no meaning."""
        entries = scored.prompt_logprobs
        if self._num_logprobs is None or entries is None:
            return Delta(text=self._texts[number])
        kept = [self._first_token(scored.prompt_token_ids[0])]
        kept += [
            msgspec.structs.replace(entry, top=entry.top[: self._num_logprobs])
            for entry in entries
            if entry is not None
        ]
        return Delta(text=self._texts[number], logprobs=tuple(kept))

    def writer(self, number: int, scored: ScoredPrompt) -> LegacyWriter:
        """What writes the log-probabilities of a choice of prompt `number`: those of the prompt, then its own."""
        num_echoed = 0 if self._num_logprobs is None else len(scored.prompt_token_ids)
        return LegacyWriter(self._texts[number], num_echoed, as_ids=self._as_ids)

    def _first_token(self, token_id: int) -> TokenLogprob:
        raw = self._engine.model.vocabulary.token_bytes(token_id)
        return TokenLogprob(token_id, raw.decode("utf-8", "replace"), raw, 0.0)
