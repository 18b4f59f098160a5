"""From the deltas of a choice to the parts of an answer: reasoning, text, tool calls, with their log-probabilities."""

import msgspec

from limelight.generation import Completion, Delta, FinishReason, TokenLogprob
from limelight.parsing.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart, ToolCallParser


class AnswerPart(msgspec.Struct, frozen=True):
    """A part of a choice, with the log-probabilities of the tokens that it came from (None unless asked for)."""

    part: Part
    logprobs: tuple[TokenLogprob, ...] | None = None


class AnswerReader:
    """Finds the parts of one choice. Joined, they are the same however the choice is cut into deltas.

    Log-probabilities of text that is held back come with the next part; those of tokens without any part of their own
    (marks, the end) with an empty text at the end.

    Args:
        parser: finds the calls; None: all text is text.
        max_calls: further calls are left out; None: there is no limit.
        include_reasoning: give the reasoning.
        calls_only: the answer was held to calls, so that text in it is what is left of one that broke off.
        forced: the client has named the function, so that its call is an answer like any other.
    """

    def __init__(
        self,
        parser: ToolCallParser | None = None,
        *,
        max_calls: int | None = None,
        include_reasoning: bool = True,
        calls_only: bool = False,
        forced: bool = False,
    ) -> None:
        self._parser = parser
        self._max_calls = max_calls
        self._include_reasoning = include_reasoning
        self._calls_only = calls_only
        self._forced = forced
        self._num_calls = 0
        self._arguments: list[str] = []  # of the last call
        self._held: list[TokenLogprob] = []

    def feed(self, delta: Delta) -> list[AnswerPart]:
        """The parts that are certain now; all of them, if the delta is the choice's last."""
        if self._parser is None:
            return self._plain(delta)
        parts: list[Part] = []
        if delta.reasoning:
            parts.append(ReasoningPart(delta.reasoning))
        if delta.text:
            parts += self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            for part in self._parser.finish():
                if parts and isinstance(before := parts[-1], TextPart) and isinstance(part, TextPart):
                    parts[-1] = TextPart(before.text + part.text)  # one text: its log-probabilities stay together
                else:
                    parts.append(part)
        given = [part for part in parts if self._is_given(part)]
        if delta.logprobs is None:
            return [AnswerPart(part) for part in given]
        self._held += delta.logprobs
        if not given and delta.finish_reason is not None and self._held:
            given = [TextPart("")]
        if not given:
            return []
        logprobs, self._held = tuple(self._held), []
        return [AnswerPart(given[0], logprobs), *(AnswerPart(part, ()) for part in given[1:])]

    def finish_reason(self, ended: Delta | Completion) -> str:
        """The reason on the wire, once the choice has ended: "tool_calls" where the model wants a call to be made.

        A call that the limit of tokens or a stop string has cut off is not wanted, and one to the function that the
        client has named is no news.
        """
        assert ended.finish_reason is not None, "the choice has ended"
        calls = self._num_calls > 0 and not self._forced and ended.finish_reason is FinishReason.STOP
        if calls and isinstance(ended.stop_reason, str):
            calls = _is_json("".join(self._arguments))
        return "tool_calls" if calls else ended.finish_reason.value

    def _plain(self, delta: Delta) -> list[AnswerPart]:
        parts = []
        if delta.reasoning and self._include_reasoning:
            has_logprobs = delta.logprobs and not delta.text
            parts.append(AnswerPart(ReasoningPart(delta.reasoning), delta.logprobs if has_logprobs else None))
            if has_logprobs:
                return parts
        if delta.text or delta.logprobs:
            parts.append(AnswerPart(TextPart(delta.text), delta.logprobs))
        return parts

    def _is_given(self, part: Part) -> bool:
        match part:
            case ReasoningPart():
                return self._include_reasoning
            case TextPart():
                return not self._calls_only
            case CallStart(index):
                if self._in_limit(index):
                    self._num_calls = index + 1
                    self._arguments.clear()
                return self._in_limit(index)
            case CallArguments(index, text):
                if self._in_limit(index):
                    self._arguments.append(text)
                return self._in_limit(index)

    def _in_limit(self, index: int) -> bool:
        return self._max_calls is None or index < self._max_calls


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
