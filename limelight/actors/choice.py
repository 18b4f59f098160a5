"""One choice of a request on its way from tokens to text: detokenizer, stop matcher and reasoning splitter."""

from collections import deque
from typing import NamedTuple

from limelight.actors.messages import Generated
from limelight.actors.repetition import RepetitionDetector
from limelight.actors.token_logprobs import token_logprob
from limelight.generation import Delta, FinishReason, SamplingParams, TokenLogprob
from limelight.models.loaded_model import Vocabulary
from limelight.models.text.detokenizer import Detokenizer
from limelight.models.text.stop_matcher import StopMatcher
from limelight.parsing.reasoning import ReasoningSplitter, Split
from limelight.step import SampledLogprobs


class Choice:
    """Turns the tokens of one choice into deltas.

    Tokens and log-probabilities are released together with their text: a token waits while its last character is
    incomplete or may belong to a stop string or to a mark of reasoning. Tokens whose text lies behind a matched stop
    string are left out of the deltas, but count as generated.

    Attributes:
        finished: the last delta has been made; further tokens are to be ignored.
        num_tokens: tokens drawn, up to the one that ended the choice.
    """

    def __init__(self, index: int, sampling: SamplingParams, vocabulary: Vocabulary) -> None:
        self.finished = False
        self.num_tokens = 0
        self._index = index
        self._sampling = sampling
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, sampling.skip_special_tokens, sampling.shown_special_tokens)
        self._matcher = StopMatcher(sampling.stop_strings, sampling.include_stop_str_in_output)
        self._splitter: ReasoningSplitter | None = None
        self._num_reasoning_tokens: int | None = None  # known when the reasoning has ended
        self._num_fed = 0  # characters that came out of the detokenizer
        self._num_released = 0  # characters that are in deltas or in the next one, or were marks of reasoning
        self._reasoning: list[str] = []  # of the next delta
        self._text: list[str] = []
        self._held: deque[_HeldToken] = deque()
        repetition = sampling.repetition_detection
        self._repetition = RepetitionDetector(repetition) if repetition and repetition.max_pattern_size else None
        self._is_plain = (
            not sampling.stop_strings
            and not sampling.wants_logprobs
            and sampling.detokenize
            and self._repetition is None
        )

    def expect_reasoning(self, splitter: ReasoningSplitter) -> None:
        """Keep reasoning apart from the text, which has not begun yet."""
        assert self._num_fed == 0, "called before the first token"
        self._splitter = None if splitter.is_through else splitter

    @property
    def num_reasoning_tokens(self) -> int:
        """Those of `num_tokens` that were reasoning so far, its marks included."""
        if self._num_reasoning_tokens is not None:
            return self._num_reasoning_tokens
        return self.num_tokens if self._splitter is not None and self._splitter.found_reasoning else 0

    def advance(self, generated: Generated) -> Delta:
        """Take the next tokens of this choice; the delta may be empty while text is held back."""
        if self._is_plain and self._splitter is None and generated.finish_reason is None and not self._held:
            text = self._detokenizer.feed_whole(generated.token_ids)
            if text is not None:
                return self._release_whole(text, generated.token_ids)
        for number, token_id in enumerate(generated.token_ids):
            self.num_tokens += 1
            logprobs = generated.logprobs[number] if generated.logprobs is not None else None
            silent = token_id == generated.stop_token_id and not self._sampling.include_stop_str_in_output
            self._feed(token_id, logprobs, silent)
            if self._matcher.matched is not None:
                return self._finish(FinishReason.STOP, self._matcher.matched, None)
            is_last = generated.finish_reason is not None and number == len(generated.token_ids) - 1
            if self._repeats(token_id) and not is_last:
                return self._end(FinishReason.STOP, None, "repetition")
        if generated.finish_reason is None:
            return self._delta()
        asked_for = generated.stop_token_id in (self._sampling.stop_token_ids or ())
        stop_reason = generated.stop_token_id if asked_for else None  # the model's own end is no news to a client
        return self._end(generated.finish_reason, stop_reason, generated.finish_details)

    def cut(self, details: str) -> Delta:
        """The last delta of a choice that is ended from outside, with what was held back."""
        return self._end(FinishReason.LENGTH, None, details)

    def _end(self, reason: FinishReason, stop_reason: str | int | None, details: str | None) -> Delta:
        """The last delta, with what was held back: unless that completes a stop string."""
        tail = self._detokenizer.flush()
        self._release(self._matcher.feed(tail) + self._matcher.flush())
        if self._matcher.matched is not None:
            return self._finish(FinishReason.STOP, self._matcher.matched, None)
        return self._finish(reason, stop_reason, details)

    def _repeats(self, token_id: int) -> bool:
        return (
            self._repetition is not None
            and self._repetition.feed(token_id)
            and self.num_tokens >= self._sampling.min_tokens
        )

    def _release_whole(self, text: str, token_ids: tuple[int, ...]) -> Delta:
        """The usual case: nothing was held back, and nothing is."""
        self.num_tokens += len(token_ids)
        self._num_fed += len(text)
        self._num_released = self._num_fed
        return Delta(index=self._index, text=text, token_ids=token_ids)

    def _feed(self, token_id: int, logprobs: SampledLogprobs | None, silent: bool) -> None:
        start = self._num_fed
        text = "" if silent or not self._sampling.detokenize else self._detokenizer.feed(token_id)
        self._num_fed += len(text)
        # A token that ends inside a character ends with that character, which is not there yet.
        end = self._num_fed + (1 if self._detokenizer.num_pending_bytes else 0)
        self._held.append(_HeldToken(token_id, logprobs, start, end, silent))
        if text:
            watched = self.num_tokens > self._sampling.min_tokens
            self._release(self._matcher.feed(text) if watched else text)

    def _release(self, text: str) -> None:
        """Text that belongs to no stop string."""
        splitter = self._splitter
        if splitter is None:
            self._num_released += len(text)
            self._text.append(text)
            return
        self._take_split(splitter, splitter.feed(text))
        if self._num_reasoning_tokens is None and splitter.text_begins is not None:
            # Tokens that have been released lie within the reasoning.
            num_behind = sum(token.start >= splitter.text_begins for token in self._held)
            self._num_reasoning_tokens = self.num_tokens - num_behind if splitter.found_reasoning else 0
        if splitter.is_through:
            self._splitter = None

    def _take_split(self, splitter: ReasoningSplitter, split: Split) -> None:
        self._num_released = splitter.num_taken - splitter.num_held
        self._reasoning.append(split.reasoning)
        self._text.append(split.text)

    def _delta(self) -> Delta:
        tokens = []
        while self._held and self._held[0].end <= self._num_released:
            tokens.append(self._held.popleft())
        return Delta(
            index=self._index,
            reasoning=self._take(self._reasoning),
            text=self._take(self._text),
            token_ids=tuple(token.token_id for token in tokens),
            logprobs=self._logprobs(tokens),
        )

    def _finish(self, reason: FinishReason, stop_reason: str | int | None, details: str | None) -> Delta:
        self.finished = True
        if self._splitter is not None:
            self._take_split(self._splitter, self._splitter.finish())
        matched = self._matcher.matched is not None
        tokens = [token for token in self._held if not matched or token.start < self._num_released]
        self._held.clear()
        return Delta(
            index=self._index,
            reasoning=self._take(self._reasoning),
            text=self._take(self._text),
            token_ids=tuple(token.token_id for token in tokens),
            logprobs=self._logprobs(tokens),
            finish_reason=reason,
            stop_reason=stop_reason,
            finish_details=details,
        )

    @staticmethod
    def _take(pieces: list[str]) -> str:
        joined = "".join(pieces)
        pieces.clear()
        return joined

    def _logprobs(self, tokens: "list[_HeldToken]") -> tuple[TokenLogprob, ...] | None:
        if not self._sampling.wants_logprobs:
            return None
        return tuple(self._logprob(token) for token in tokens)

    def _logprob(self, token: "_HeldToken") -> TokenLogprob:
        assert token.logprobs is not None, "the scheduler sends log-probabilities when they are asked for"

        def is_hidden(token_id: int) -> bool:
            return self._detokenizer.is_hidden(token_id) or (token.silent and token_id == token.token_id)

        return token_logprob(
            self._vocabulary, token.token_id, token.logprobs, self._sampling.logprob_token_ids or (), is_hidden
        )


class _HeldToken(NamedTuple):
    """A token whose text, characters `start` to `end - 1` of the choice, is not released yet.

    A `silent` one ended the choice and has no text.
    """

    token_id: int
    logprobs: SampledLogprobs | None
    start: int
    end: int
    silent: bool
