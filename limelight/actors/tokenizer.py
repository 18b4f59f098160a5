"""The tokenizer actor: owns the encoding threads. Rendering and encoding never run on the event loop."""

import asyncio
import logging
from functools import partial

from limelight.actors.channel import Channel
from limelight.actors.messages import Encode, Encoded, Failed, ToTokenizer
from limelight.actors.worker_thread import WorkerThreads, post
from limelight.errors import ContextLengthExceeded, InvalidRequest, LimelightError
from limelight.generation import ChatPrompt, Prompt, TextPrompt, TokensPrompt
from limelight.models.loaded_model import ChatFormat, Vocabulary
from limelight.quoting import quoted

logger = logging.getLogger(__name__)

NUM_THREADS = 2
PROBED_CHARACTERS_PER_TOKEN = 16
"""A text longer than this times the context is probably too long, so a part of it is encoded first."""


class TokenizerActor:
    """Answers each `Encode` with `Encoded` or `Failed`.

    Args:
        inbox: one message per live request at most.
        max_model_len: a text that clearly has more tokens is refused without encoding all of it.
        vocab_size: the model's tokens; a tokenizer may know more of them, which the model has no embedding for.

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
    ) -> None:
        self._inbox = inbox
        self._vocabulary = vocabulary
        self._chat_format = chat_format
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._threads = WorkerThreads("limelight-encode", NUM_THREADS)

    async def run(self) -> None:
        """Hand every message to the threads, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            for message in await self._inbox.drain():
                self._threads.put(partial(self._answer, loop, message))

    async def close(self) -> None:
        """End the threads; an encoding in progress is waited for, queued ones are dropped."""
        await self._threads.close()

    def _answer(self, loop: asyncio.AbstractEventLoop, message: Encode) -> None:
        """On an encoding thread."""
        if message.reply_to.closed:
            return  # cancelled while it was queued
        answer: Encoded | Failed
        try:
            answer = self._encode(message.prompt)
        except LimelightError as error:
            answer = Failed(error)
        except BaseException as error:  # a bug, or a panic in native code, fails its own request only
            logger.exception("request %s: the prompt could not be encoded", message.request_id)
            failure = LimelightError(f"the prompt could not be encoded: {type(error).__name__}")
            failure.__cause__ = error
            answer = Failed(failure)
        post(loop, message.reply_to.tell, answer)

    def _encode(self, prompt: Prompt) -> Encoded:
        encoded = self._tokens(prompt)
        if not encoded.token_ids:
            raise InvalidRequest("the prompt is empty: it has no token; send at least one character", param="prompt")
        return encoded

    def _tokens(self, prompt: Prompt) -> Encoded:
        match prompt:
            case TokensPrompt():
                return Encoded(prompt.token_ids, None)
            case TextPrompt():
                text, add_special_tokens = prompt.text, prompt.add_special_tokens
            case ChatPrompt():
                text, add_special_tokens = self._chat_format.render(prompt), False
        self._probe(text)
        token_ids = self._vocabulary.encode(text, add_special_tokens=add_special_tokens)
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
