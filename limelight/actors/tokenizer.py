"""The tokenizer actor: owns the encoding threads. Rendering and encoding never run on the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from limelight.actors.channel import Channel
from limelight.actors.messages import Encode, Encoded, Failed, ToTokenizer
from limelight.actors.timed_answer import TimedAnswer
from limelight.actors.worker_thread import WorkerThreads
from limelight.errors import ContextLengthExceeded, EngineNotRunning, InvalidRequest, LimelightError, Overloaded
from limelight.generation import ChatPrompt, Prompt, TextPrompt, TokensPrompt, Truncation
from limelight.models.loaded_model import ChatFormat, Vocabulary
from limelight.models.text.control_texts import MarksControls, marked_conversation
from limelight.models.text.token_offsets import Offsets, token_offsets
from limelight.quoting import quoted
from limelight.telemetry.log_fields import of_request, without_message

logger = logging.getLogger(__name__)

NUM_THREADS = 2
PROBED_CHARACTERS_PER_TOKEN = 16
"""A text longer than this times the context is probably too long, so a part of it is encoded first."""
MAX_ENCODE_SECONDS = 60.0
"""Native code that never returns keeps its thread; who waits for it is told after so long."""
MAX_QUESTIONS = 256
"""Calls of `encode` and `decode` that may wait at once."""

T = TypeVar("T")


class TokenizerActor:
    """Answers each `Encode` with `Encoded` or `Failed`.

    Args:
        inbox: one message per live request at most.
        max_model_len: a text that clearly has more tokens is refused without encoding all of it.
        vocab_size: the model's tokens; a tokenizer may know more of them, which the model has no embedding for.
        max_seconds: what takes longer fails its request.

    Attributes:
        threads: that encode.

    Raises:
        RuntimeError: the system has no thread left to give.
    """

    name = "tokenizer"

    def __init__(
        self,
        inbox: Channel[ToTokenizer],
        vocabulary: Vocabulary,
        chat_format: ChatFormat,
        *,
        max_model_len: int,
        vocab_size: int,
        max_seconds: float = MAX_ENCODE_SECONDS,
    ) -> None:
        self._inbox = inbox
        self._vocabulary = vocabulary
        self._chat_format = chat_format
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._max_seconds = max_seconds
        self.threads = WorkerThreads("limelight-encode", NUM_THREADS)
        self._pending: set[TimedAnswer] = set()
        self._questions: set[asyncio.Future[Any]] = set()

    async def run(self) -> None:
        """Hand every message to the threads, until cancelled."""
        while True:
            for message in await self._inbox.drain():
                self._start(message)

    async def close(self) -> None:
        """End the threads; an encoding in progress is waited for, queued ones are dropped."""
        for answer in list(self._pending):
            answer.drop()
        for question in self._questions:
            if not question.done():
                question.set_exception(EngineNotRunning("the engine was stopped before the text was encoded"))
        await self.threads.close()

    async def encode(self, prompt: Prompt) -> Encoded:
        """What a request with this prompt would be submitted with, whatever its length.

        Raises:
            InvalidRequest: the prompt cannot be rendered or encoded.
            Overloaded: too many texts wait for the threads.
            EngineNotRunning: the engine stopped meanwhile.
        """
        return await self._ask(partial(self._tokens, prompt, bounded=False))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones written out; raises as `encode`."""
        return await self._ask(partial(self._vocabulary.decode, token_ids, skip_special_tokens=False))

    async def texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, a part of a character as U+FFFD; raises as `encode`."""
        read = self._vocabulary.token_bytes
        return await self._ask(lambda: [read(token_id).decode("utf-8", "replace") for token_id in token_ids])

    async def _ask(self, call: Callable[[], T]) -> T:
        if len(self._questions) >= MAX_QUESTIONS:
            raise Overloaded(f"{len(self._questions)} texts wait to be encoded or decoded already; try again")
        question = self.threads.call(call)
        self._questions.add(question)
        try:
            async with asyncio.timeout(self._max_seconds):  # `wait_for` of Python 3.11 may swallow a cancellation
                return await question
        except TimeoutError:
            raise Overloaded(f"no text could be encoded or decoded for {self._max_seconds:g} s; try again") from None
        finally:
            self._questions.discard(question)

    def _start(self, message: Encode) -> None:
        seconds = self._max_seconds
        TimedAnswer(
            partial(self._answer, message),
            message.reply_to,
            self.threads,
            seconds,
            lambda: Overloaded(f"the prompt could not be encoded within {seconds:g} s; try again, or shorten it"),
            lambda: Overloaded(
                f"the threads that encode prompts have been stuck for {seconds:g} s; try another server"
            ),
            self._pending,
        )

    def _answer(self, message: Encode) -> Encoded | Failed:
        """On an encoding thread."""
        began_at = time.monotonic()
        try:
            encoded = self._encode(message)
            return msgspec.structs.replace(encoded, seconds=time.monotonic() - began_at)
        except LimelightError as error:
            return Failed(error)
        except BaseException as error:  # a bug, or a panic in native code, fails its own request only
            logger.exception(
                "request %s: the prompt could not be encoded",
                message.request_id,
                exc_info=without_message(error),
                extra=of_request(message.request_id),
            )
            failure = LimelightError(f"the prompt could not be encoded: {type(error).__name__}")
            failure.__cause__ = error
            return Failed(failure)

    def _encode(self, message: Encode) -> Encoded:
        encoded = self._tokens(message.prompt, bounded=message.truncation is None)
        if not encoded.token_ids:
            raise InvalidRequest("the prompt is empty: it has no token; send at least one character", param="prompt")
        offsets = self._offsets(encoded) if message.with_offsets else None
        if message.truncation is None:
            return Encoded(encoded.token_ids, encoded.text, offsets)
        kept = self._kept(message.truncation, len(encoded.token_ids), message.num_output_tokens or 1)
        return Encoded(encoded.token_ids[kept], encoded.text, None if offsets is None else offsets[kept])

    def _offsets(self, encoded: Encoded) -> Offsets | None:
        return None if encoded.text is None else token_offsets(self._vocabulary, encoded.token_ids, encoded.text)

    def _kept(self, truncation: Truncation, num_tokens: int, num_output_tokens: int) -> slice:
        """The part of a prompt that a truncation leaves."""
        limit = truncation.max_tokens or max(self._max_model_len - num_output_tokens, 1)
        return slice(0, limit) if truncation.side == "right" else slice(max(num_tokens - limit, 0), num_tokens)

    def _tokens(self, prompt: Prompt, *, bounded: bool) -> Encoded:
        """Rendered and encoded; `bounded` refuses a text that is clearly too long without encoding all of it."""
        mark, encode = None, self._vocabulary.encode
        match prompt:
            case TokensPrompt():
                return Encoded(prompt.token_ids, None)
            case TextPrompt():
                text, add_special_tokens = prompt.text, prompt.add_special_tokens
            case ChatPrompt():
                if isinstance(self._vocabulary, MarksControls):
                    prompt, mark = marked_conversation(prompt, self._vocabulary)
                    encode = self._vocabulary.encode if mark is None else partial(self._vocabulary.encode_marked, mark)
                text, add_special_tokens = self._chat_format.render(prompt), prompt.add_special_tokens
        if bounded:
            self._probe(text)
        token_ids = encode(text, add_special_tokens=add_special_tokens)
        if mark is not None:
            text = text.replace(mark, "")
        if token_ids and max(token_ids) >= self._vocab_size:
            param = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            raise self._without_embedding(max(token_ids), param)
        return Encoded(tuple(token_ids), text)

    def _without_embedding(self, token_id: int, param: str) -> InvalidRequest:
        """For a token such as Gemma 3's <image_soft_token>, which text models keep in their tokenizer only."""
        written = self._vocabulary.token_bytes(token_id).decode(errors="replace")
        return InvalidRequest(
            f"the prompt has the token {quoted(written)} ({token_id}), which the tokenizer knows and the model does "
            f"not: its ids are 0 to {self._vocab_size - 1}; leave it out",
            param=param,
        )

    def _probe(self, text: str) -> None:
        """Refuse a text that is far too long at the cost of a part of it: megabytes keep a thread busy for seconds.

        A part has about as many tokens as it has within the whole; twice the context leaves room for its cut end.
        """
        num_characters = PROBED_CHARACTERS_PER_TOKEN * self._max_model_len
        while num_characters < len(text):
            num_tokens = len(self._vocabulary.encode(text[:num_characters], add_special_tokens=False))
            if num_tokens > 2 * self._max_model_len:
                raise ContextLengthExceeded(
                    f"the first {num_characters} of the prompt's {len(text)} characters have {num_tokens} tokens, but "
                    f"the context length is {self._max_model_len} tokens; shorten the prompt"
                )
            num_characters *= 4
