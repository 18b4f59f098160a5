"""One response in the making: what it is now, and the events of how it got there."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain

import msgspec

from limelight.errors import Overloaded, RequestCancelled, RequestExpired
from limelight.generation import Delta, FinishReason, Generation, Usage
from limelight.http.conversation import AnswerPart, AnswerReader
from limelight.http.errors import ErrorObject
from limelight.http.protocol.responses.events import TERMINAL, Event, ResponseEvent
from limelight.http.protocol.responses.objects import (
    IncompleteDetails,
    ResponseError,
    ResponseObject,
    response_usage,
)
from limelight.http.protocol.timings import asked_timings
from limelight.http.responses.output import Output
from limelight.parsing.parts import TextPart
from limelight.telemetry.timeline import RequestTimeline

CANCELLED = frozenset({RequestCancelled.code, RequestExpired.code})
"""`code` of the errors that end a response which its owner cancelled, or did not come back for."""


class ResponseRun:
    """From the first event to the terminal one; whole answers and streams go the same way.

    Args:
        response: as the request asks for it, without any output.
        return_timings: whether the response that is complete tells how long its parts took.
    """

    def __init__(
        self, response: ResponseObject, reader: AnswerReader, output: Output, return_timings: bool | None = None
    ) -> None:
        self._response = response
        self._reader = reader
        self._output = output
        self._return_timings = return_timings
        self._finish_reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._begun = False
        self._text_begun = False

    @property
    def response(self) -> ResponseObject:
        """The response as it is now."""
        return msgspec.structs.replace(self._response, output=self._output.items)

    def opening(self) -> Iterator[Event]:
        """The first events; a response in the background is queued until it has begun."""
        yield self._event("response.created")
        if self._response.status == "queued":
            yield self._event("response.queued")
        else:
            yield from self._begin()

    def feed(self, delta: Delta) -> Iterator[Event]:
        """Events for what the model has said."""
        yield from self._begin()
        for piece in _apart(delta, text_begun=self._text_begun):
            for part in _own_logprobs(self._reader.feed(piece)):
                yield from self._output.take(part)
        self._text_begun = self._text_begun or bool(delta.text)
        self._finish_reason = delta.finish_reason or self._finish_reason
        self._usage = delta.usage or self._usage

    def finish(self, timelines: Iterable[RequestTimeline]) -> Iterator[Event]:
        """The last events, the terminal one included; the choice has ended, and `timelines` are of the requests."""
        yield from self._begin()
        usage = None if self._usage is None else response_usage(self._usage)
        if self._finish_reason is FinishReason.LENGTH:
            yield from self._output.close("incomplete")
            changes = {"status": "incomplete", "incomplete_details": IncompleteDetails()}
        else:
            yield from self._output.close("completed")
            changes = {"status": "completed", "completed_at": int(time.time())}
        yield self._end(usage=usage, timings=asked_timings(self._return_timings, timelines), **changes)

    def fail(self, error: ErrorObject) -> Iterator[Event]:
        """The last events after an error. What has been said stays."""
        if self._output.items:
            yield from self._output.close("incomplete")
        if error.code in CANCELLED:
            yield self._end(status="cancelled")
        else:
            yield self._end(status="failed", error=_response_error(error))

    def _begin(self) -> Iterator[Event]:
        if not self._begun:
            self._begun = True
            self._response = msgspec.structs.replace(self._response, status="in_progress")
            yield self._event("response.in_progress")

    def _end(self, **changes: object) -> Event:
        self._response = msgspec.structs.replace(self._response, **changes)
        return self._event(TERMINAL[self._response.status])

    def _event(self, kind: str) -> ResponseEvent:
        return ResponseEvent(type=kind, response=self.response)


def whole_response(run: ResponseRun, generation: Generation, timelines: Sequence[RequestTimeline]) -> ResponseObject:
    """The response to a finished generation."""
    output, usage = generation.outputs[0], generation.usage
    answer = Delta(
        reasoning=output.reasoning,
        text=output.text,
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        usage=usage,
    )
    for _ in chain(run.feed(answer), run.finish(timelines)):
        pass
    return run.response


def _apart(delta: Delta, *, text_begun: bool) -> Iterator[Delta]:
    """The reasoning of `delta`, and then its text with the log-probabilities of this text and what follows it.

    Tokens before the first text are reasoning, its marks, or have none.
    """
    if not delta.logprobs or (text_begun and not delta.reasoning):
        yield delta
        return
    if delta.reasoning:
        yield Delta(reasoning=delta.reasoning)
    text, written = delta.text.encode(), b"".join(entry.bytes for entry in delta.logprobs)
    starts = list(accumulate((len(entry.bytes) for entry in delta.logprobs), initial=0))[:-1]
    places = reversed(range(len(starts)))
    start = next((place for place in places if written.startswith(text, starts[place])), 0) if text else len(starts)
    yield msgspec.structs.replace(delta, reasoning="", logprobs=delta.logprobs[start:])


def _own_logprobs(parts: Sequence[AnswerPart]) -> Iterator[AnswerPart]:
    """The parts; a text before others keeps the log-probabilities of its own tokens, and not of those that follow."""
    for part in parts[:-1]:
        if isinstance(part.part, TextPart) and part.logprobs:
            left = len(part.part.text.encode())
            ends = accumulate(len(entry.bytes) for entry in part.logprobs)
            number = sum(end - len(entry.bytes) < left for end, entry in zip(ends, part.logprobs, strict=True))
            yield AnswerPart(part.part, part.logprobs[:number])
        else:
            yield part
    yield from parts[-1:]


def _response_error(error: ErrorObject) -> ResponseError:
    if error.type == "invalid_request_error":
        return ResponseError("invalid_prompt", error.message)
    if error.code == Overloaded.code:
        return ResponseError("rate_limit_exceeded", error.message)
    return ResponseError("server_error", error.message)
