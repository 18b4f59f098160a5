"""One choice of a request on its way from tokens to text: detokenizer, stop matcher, and what they still hold back."""

from collections import deque
from typing import NamedTuple

from limelight.actors.messages import Generated
from limelight.actors.repetition import RepetitionDetector
from limelight.actors.token_logprobs import token_logprob
from limelight.generation import Delta, FinishReason, SamplingParams, TokenLogprob
from limelight.models.loaded_model import Vocabulary
from limelight.models.text.detokenizer import Detokenizer
from limelight.models.text.stop_matcher import StopMatcher
from limelight.step import SampledLogprobs


class Choice:
    """Turns the tokens of one choice into deltas.

    Tokens and log-probabilities are released together with their text: a token waits while its last character is
    incomplete or may belong to a stop string. Tokens whose text lies behind a matched stop string are left out of the
    deltas, but count as generated.

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
        self._detokenizer = Detokenizer(vocabulary, sampling.skip_special_tokens)
        self._matcher = StopMatcher(sampling.stop_strings, sampling.include_stop_str_in_output)
        self._num_fed = 0  # characters that came out of the detokenizer
        self._num_released = 0  # characters that have been put into deltas
        self._held: deque[_HeldToken] = deque()
        repetition = sampling.repetition_detection
        self._repetition = RepetitionDetector(repetition) if repetition and repetition.max_pattern_size else None
        self._is_plain = (
            not sampling.stop_strings
            and not sampling.wants_logprobs
            and sampling.detokenize
            and self._repetition is None
        )

    def advance(self, generated: Generated) -> Delta:
        """Take the next tokens of this choice; the delta may be empty while text is held back."""
        if self._is_plain and generated.finish_reason is None and not self._held:
            text = self._detokenizer.feed_whole(generated.token_ids)
            if text is not None:
                return self._release_whole(text, generated.token_ids)
        released: list[str] = []
        for number, token_id in enumerate(generated.token_ids):
            self.num_tokens += 1
            logprobs = generated.logprobs[number] if generated.logprobs is not None else None
            silent = token_id == generated.stop_token_id and not self._sampling.include_stop_str_in_output
            released.append(self._feed(token_id, logprobs, silent))
            if self._matcher.matched is not None:
                return self._finish("".join(released), FinishReason.STOP, self._matcher.matched, None)
            is_last = generated.finish_reason is not None and number == len(generated.token_ids) - 1
            if self._repeats(token_id) and not is_last:
                return self._end(released, FinishReason.STOP, None, "repetition")
        if generated.finish_reason is None:
            return self._delta("".join(released))
        asked_for = generated.stop_token_id in (self._sampling.stop_token_ids or ())
        stop_reason = generated.stop_token_id if asked_for else None  # the model's own end is no news to a client
        return self._end(released, generated.finish_reason, stop_reason, generated.finish_details)

    def _end(
        self, released: list[str], reason: FinishReason, stop_reason: str | int | None, details: str | None
    ) -> Delta:
        """The last delta, with what was held back: unless that completes a stop string."""
        tail = self._detokenizer.flush()
        released.append(self._release(self._matcher.feed(tail) + self._matcher.flush()))
        text = "".join(released)
        if self._matcher.matched is not None:
            return self._finish(text, FinishReason.STOP, self._matcher.matched, None)
        return self._finish(text, reason, stop_reason, details)

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

    def _feed(self, token_id: int, logprobs: SampledLogprobs | None, silent: bool) -> str:
        start = self._num_fed
        text = "" if silent or not self._sampling.detokenize else self._detokenizer.feed(token_id)
        self._num_fed += len(text)
        # A token that ends inside a character ends with that character, which is not there yet.
        end = self._num_fed + (1 if self._detokenizer.num_pending_bytes else 0)
        self._held.append(_HeldToken(token_id, logprobs, start, end))
        if not text:
            return ""
        watched = self.num_tokens > self._sampling.min_tokens
        return self._release(self._matcher.feed(text) if watched else text)

    def _release(self, text: str) -> str:
        self._num_released += len(text)
        return text

    def _delta(self, text: str) -> Delta:
        tokens = []
        while self._held and self._held[0].end <= self._num_released:
            tokens.append(self._held.popleft())
        return Delta(
            index=self._index,
            text=text,
            token_ids=tuple(token.token_id for token in tokens),
            logprobs=self._logprobs(tokens),
        )

    def _finish(self, text: str, reason: FinishReason, stop_reason: str | int | None, details: str | None) -> Delta:
        self.finished = True
        matched = self._matcher.matched is not None
        tokens = [token for token in self._held if not matched or token.start < self._num_released]
        self._held.clear()
        return Delta(
            index=self._index,
            text=text,
            token_ids=tuple(token.token_id for token in tokens),
            logprobs=self._logprobs(tokens),
            finish_reason=reason,
            stop_reason=stop_reason,
            finish_details=details,
        )

    def _logprobs(self, tokens: "list[_HeldToken]") -> tuple[TokenLogprob, ...] | None:
        if not self._sampling.wants_logprobs:
            return None
        return tuple(self._logprob(token) for token in tokens)

    def _logprob(self, token: "_HeldToken") -> TokenLogprob:
        assert token.logprobs is not None, "the scheduler sends log-probabilities when they are asked for"
        return token_logprob(self._vocabulary, token.token_id, token.logprobs, self._sampling.logprob_token_ids or ())


class _HeldToken(NamedTuple):
    """A token whose text, characters `start` to `end - 1` of the choice, is not released yet."""

    token_id: int
    logprobs: SampledLogprobs | None
    start: int
    end: int
