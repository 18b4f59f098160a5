"""A client of the OpenAI API that costs little, so that the server is what is measured.

One protocol object per request takes the bytes where the event loop reads them; no task wakes for a token.
"""

import asyncio
import ssl
import time
from typing import Any

import msgspec

from limelight.bench.http_response import HttpResponse
from limelight.bench.request_result import RequestResult
from limelight.bench.target import Target

SHOWN_CHARACTERS = 500


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None

    def brings_tokens(self) -> bool:
        """Not so the first event of a chat, which only names the role. The last may end with tokens without text."""
        delta = self.delta
        return bool(
            self.text or delta.content or delta.reasoning or delta.reasoning_content or self.finish_reason is not None
        )


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


async def send(target: Target, path: str, body: dict[str, Any], context: ssl.SSLContext | None) -> RequestResult:
    """Sends one request and reads its stream to the end; whatever goes wrong stands in the result.

    Args:
        path: from `/v1` on.
        context: for a target that speaks TLS.
    """
    loop = asyncio.get_running_loop()
    encoded = msgspec.json.encode(body)
    exchange = _Exchange(loop.create_future())
    try:
        transport, _ = await loop.create_connection(lambda: exchange, target.host, target.port, ssl=context)
    except OSError as error:
        return RequestResult(error=f"no connection: {error.strerror or error}")
    try:
        transport.write(target.head(path, len(encoded)) + encoded)
        await exchange.ended
    finally:
        transport.abort()
    return exchange.result


class _Exchange(asyncio.Protocol):
    """One request on a connection of its own. `ended` is set once the result is final."""

    def __init__(self, ended: "asyncio.Future[None]") -> None:
        self.result = RequestResult()
        self.ended = ended
        self._response = HttpResponse()
        self._decoder = msgspec.json.Decoder(_Event)
        self._refusal: list[bytes] = []
        self._started = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        seconds = time.perf_counter() - self._started
        try:
            lines = self._response.feed(data)
            if self._response.status not in (None, 200):
                self._refusal += lines
                return
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), seconds)
        except (ValueError, msgspec.MsgspecError) as error:
            self._end(f"{type(error).__name__}: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        response = self._response
        if response.status in (None, 200):
            self._end(str(exc) if exc else "the connection ended before the stream did")
        else:
            text = b"\n".join([*self._refusal, response.rest()]).decode(errors="replace").strip()
            self._end(f"{response.status} {response.reason}: {_message(text)}")

    def _event(self, data: bytes, seconds: float) -> None:
        if data == b"[DONE]":
            self._end(None)
            return
        event = self._decoder.decode(data)
        result = self.result
        if event.error is not None:
            self._end(_message(data.decode(errors="replace")))
            return
        if event.usage is not None:
            result.num_input_tokens = event.usage.prompt_tokens
            result.num_output_tokens = event.usage.completion_tokens
        if any(choice.brings_tokens() for choice in event.choices):
            result.arrived(seconds)

    def _end(self, error: str | None) -> None:
        if not self.ended.done():
            self.result.error = error
            self.ended.set_result(None)


def _message(text: str) -> str:
    """The message of an OpenAI error object, or the whole text where it is none."""
    try:
        error = msgspec.json.decode(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.MsgspecError, KeyError, TypeError):
        pass
    return " ".join(text[:SHOWN_CHARACTERS].split())
