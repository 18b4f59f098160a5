"""`limelight bench serve`: drives an OpenAI-compatible server and measures its streams."""

import asyncio
import functools
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from limelight.bench.arrivals import arrival_seconds, run_all
from limelight.bench.client import send
from limelight.bench.prompts import token_counter, token_prompts, word_prompts
from limelight.bench.request_result import RequestResult
from limelight.bench.target import BenchmarkFailed, Target
from limelight.errors import ConfigError

SERVE = (sys.executable, "-m", "limelight", "serve", "--port", "0")
END_SECONDS = 10.0


class ServingLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, and how fast.

    Attributes:
        endpoint: "completions" or "chat".
        prompt_kind: "tokens" (ids), "words", or None: tokens, and words for a chat.
        tokenizer: where a tokenizer.json lies by which prompts of words get their length; None: a word is a token.
        input_len, prefix_len: tokens of a prompt that are its own, and before them those that all prompts share.
        output_len: tokens of an output at the most.
        concurrency: requests on their way at once, None for no limit.
        request_rate: requests sent per second on average, None for all at once.
        burstiness: shape of the gamma distribution of the times between them.
        ignore_eos: go on to `output_len` tokens whatever the model says; servers of OpenAI's own know no such field.
        timeout_seconds: after which a request has failed.

    Raises:
        ConfigError: values that do not go together.
    """

    endpoint: str = "completions"
    prompt_kind: str | None = None
    tokenizer: str | None = None
    num_prompts: int = 32
    input_len: int = 128
    prefix_len: int = 0
    output_len: int = 64
    concurrency: int | None = 8
    request_rate: float | None = None
    burstiness: float = 1.0
    temperature: float = 0.0
    ignore_eos: bool = True
    seed: int = 0
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.prompt_kind == "tokens" and self.endpoint == "chat":
            raise ConfigError("--prompt-kind tokens does not go with --endpoint chat: messages are text; use words")
        if self.tokenizer is not None and not self.sends_words:
            raise ConfigError("--tokenizer is of use for prompts of words only; add --prompt-kind words")

    @property
    def sends_words(self) -> bool:
        """Whether prompts are text."""
        return (self.prompt_kind or ("words" if self.endpoint == "chat" else "tokens")) == "words"

    def prompts(self) -> "list[str] | list[list[int]]":
        """The prompts, the same ones for the same seed.

        Raises:
            ConfigError: the tokenizer cannot be read.
        """
        if self.sends_words:
            count = None if self.tokenizer is None else token_counter(self.tokenizer)
            return word_prompts(
                self.num_prompts, self.input_len, prefix_len=self.prefix_len, seed=self.seed, count_tokens=count
            )
        return token_prompts(self.num_prompts, self.input_len, prefix_len=self.prefix_len, seed=self.seed)

    def body(self, model: str, prompt: str | list[int]) -> tuple[str, dict[str, Any]]:
        """Path and body of one request."""
        body: dict[str, Any] = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": self.temperature,
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.endpoint == "chat":
            messages = [{"role": "user", "content": prompt}]
            return "/v1/chat/completions", body | {"messages": messages, "max_completion_tokens": self.output_len}
        return "/v1/completions", body | {"prompt": prompt, "max_tokens": self.output_len}


async def drive(
    target: Target, model: str, load: ServingLoad, finished: Callable[[RequestResult], None]
) -> tuple[list[RequestResult], float]:
    """Sends the whole load; see `run_all`."""
    context = ssl.create_default_context() if target.secure else None

    async def one(prompt: str | list[int]) -> RequestResult:
        path, body = load.body(model, prompt)
        try:
            async with asyncio.timeout(load.timeout_seconds):
                result = await send(target, path, body, context)
        except TimeoutError:
            return RequestResult(error=f"no end within {load.timeout_seconds:g} s")
        if result.error is None and not result.num_input_tokens:
            result.is_estimated = True
            result.num_input_tokens = load.prefix_len + load.input_len
            result.num_output_tokens = len(result.gaps_seconds) + bool(result.latency_seconds)
        return result

    due = arrival_seconds(load.num_prompts, load.request_rate, load.burstiness, load.seed)
    sends = [functools.partial(one, prompt) for prompt in load.prompts()]
    return await run_all(sends, due, load.concurrency, finished)


@contextmanager
def started_server(arguments: Sequence[str], command: Sequence[str] = SERVE) -> Iterator[str]:
    """A `limelight serve` of our own on a free port; yields its address, and ends it.

    Raises:
        BenchmarkFailed: it ended before it served; what it said stands on standard error.
    """
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 (ours)
        try:
            assert server.stdout is not None
            line = next((line for line in server.stdout if ": open http" in line), None)
            if line is None:
                raise BenchmarkFailed("the server did not start; its own words stand above")
            yield line.rpartition(" ")[2].strip()
        finally:
            server.terminate()
            try:
                server.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
