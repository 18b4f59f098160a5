"""One response in the making: what it is now, and the events of how it got there."""

import time
from collections.abc import Iterator

import msgspec

from limelight.errors import Overloaded
from limelight.generation import Completion, Delta, FinishReason, Generation, Usage
from limelight.http.conversation import AnswerReader
from limelight.http.errors import ErrorObject
from limelight.http.protocol.responses.events import TERMINAL, Event, ResponseEvent
from limelight.http.protocol.responses.objects import (
    IncompleteDetails,
    ResponseError,
    ResponseObject,
    response_usage,
)
from limelight.http.responses.output import Output

CANCELLED = "request_cancelled"
"""`code` of the error that ends a response which its owner cancelled."""


class ResponseRun:
    """From the first event to the terminal one; whole answers and streams go the same way.

    Args:
        response: as the request asks for it, without any output.
    """

    def __init__(self, response: ResponseObject, reader: AnswerReader, output: Output) -> None:
        self._response = response
        self._reader = reader
        self._output = output
        self._finish_reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._begun = False

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
        for part in self._reader.feed(delta):
            yield from self._output.take(part)
        self._finish_reason = delta.finish_reason or self._finish_reason
        self._usage = delta.usage or self._usage

    def finish(self) -> Iterator[Event]:
        """The last events, the terminal one included; the choice has ended."""
        yield from self._begin()
        usage = None if self._usage is None else response_usage(self._usage)
        if self._finish_reason is FinishReason.LENGTH:
            yield from self._output.close("incomplete")
            changes = {"status": "incomplete", "incomplete_details": IncompleteDetails()}
        else:
            yield from self._output.close("completed")
            changes = {"status": "completed", "completed_at": int(time.time())}
        yield self._end(usage=usage, **changes)

    def fail(self, error: ErrorObject) -> Iterator[Event]:
        """The last events after an error. What has been said stays."""
        if self._output.items:
            yield from self._output.close("incomplete")
        if error.code == CANCELLED:
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


def whole_response(run: ResponseRun, generation: Generation) -> ResponseObject:
    """The response to a finished generation."""
    for _ in run.feed(_delta(generation.outputs[0], generation.usage)):
        pass
    for _ in run.finish():
        pass
    return run.response


def _delta(output: Completion, usage: Usage) -> Delta:
    return Delta(
        index=output.index,
        reasoning=output.reasoning,
        text=output.text,
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        usage=usage,
    )


def _response_error(error: ErrorObject) -> ResponseError:
    if error.type == "invalid_request_error":
        return ResponseError("invalid_prompt", error.message)
    if error.code == Overloaded.code:
        return ResponseError("rate_limit_exceeded", error.message)
    return ResponseError("server_error", error.message)
