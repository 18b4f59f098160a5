"""A scripted model for users' own tests: the real actors, scheduler, HTTP and SSE code in milliseconds, without torch.

The vocabulary is bytes, so token ids are easy to read: id 0 to 255 is that byte, then `<|end|>` and `<|begin|>`.
"""

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import msgspec

from limelight.config import EngineConfig, EngineOptions
from limelight.embeddings import EmbeddingSettings
from limelight.engine import Engine, ModelLoader, Report
from limelight.errors import CheckpointError, InvalidRequest
from limelight.generation import ChatPrompt, Pooling
from limelight.models.loaded_model import AdapterWeights, ChatFormat, LoadedModel
from limelight.models.text.chat_format import JinjaChatFormat
from limelight.parsing.answer_format import AnswerFormat
from limelight.step import (
    Capacity,
    Chunk,
    Readout,
    Sampled,
    SampledLogprobs,
    SeatSampling,
    SeatTaken,
    Step,
    StepResult,
    TokenMasks,
)

END = 256
BEGIN = 257
VOCAB_SIZE = 258
HIDDEN_SIZE = 8
MASK_BYTES = 36
"""A bit per token, in whole words of four bytes."""
_SPECIAL = {END: b"<|end|>", BEGIN: b"<|begin|>"}


class ByteVocabulary:
    """One token per byte, and two special ones."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """UTF-8 bytes of `text`, after a `<|begin|>` if asked for; `<|end|>` in the text is one token."""
        try:
            pieces = text.encode().split(_SPECIAL[END])
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the prompt holds a lone surrogate at character {error.start}", param="prompt"
            ) from None
        token_ids = [BEGIN] if add_special_tokens else []
        for number, piece in enumerate(pieces):
            token_ids += [END] * bool(number) + list(piece)
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Joined bytes as UTF-8."""
        kept = (token_id for token_id in token_ids if not (skip_special_tokens and self.is_special(token_id)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The byte itself."""
        return bytes((token_id,)) if token_id < END else _SPECIAL.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        """`<|end|>` and `<|begin|>` are."""
        return token_id in _SPECIAL


class PlainChatFormat:
    """`role: content` lines, or the request's own template.

    The role "forbidden" is refused, as a template's `raise_exception` would.
    """

    def render(self, prompt: ChatPrompt) -> str:
        """The conversation as text, open for the assistant's turn."""
        if prompt.template is not None:
            return JinjaChatFormat(None).render(prompt)
        lines = []
        for message in prompt.messages:
            if message["role"] == "forbidden":
                raise InvalidRequest("the chat template refuses: this role is forbidden", param="messages")
            lines.append(f"{message['role']}: {_plain_text(message.get('content'))}")
        if prompt.continue_final_message:
            return "\n".join(lines)
        return "\n".join([*lines, "assistant:" if prompt.add_generation_prompt else ""])


class Turn:
    """What a script is asked: one choice wants its next token."""

    def __init__(self, seat: "_Seat", position: int, read: Callable[["_Seat", int, int], list[int]]) -> None:
        self._seat = seat
        self._read = read
        self.position = position

    @property
    def number(self) -> int:
        """How many tokens the choice has drawn before."""
        return self.position - self._seat.num_prompt_tokens

    @property
    def sampling(self) -> SeatSampling:
        """The sampling settings, with the choice's own seed."""
        return self._seat.sampling

    @property
    def adapter(self) -> int | None:
        """Id of the adapter, which rises with each load, or None for the base model."""
        return self._seat.adapter

    @property
    def prompt(self) -> list[int]:
        """Token ids of the prompt, as they stand in the pages."""
        return self._read(self._seat, 0, self._seat.num_prompt_tokens)

    @property
    def output(self) -> list[int]:
        """Token ids drawn before."""
        return self._read(self._seat, self._seat.num_prompt_tokens, self.position)


Script = str | bytes | Callable[[Turn], int]
"""An answer given to everybody, then `<|end|>`; or a function from a turn to the next token id."""


def babble(turn: Turn) -> int:
    """Endless letters that depend on seed, position, adapter and the token before: any mix-up changes them."""
    last = (turn.output or turn.prompt)[-1]
    return 97 + (turn.sampling.seed * 31 + turn.position * 17 + last * 7 + (turn.adapter or 0) * 11) % 26


def echo(turn: Turn) -> int:
    """The prompt again, then `<|end|>`."""
    prompt = turn.prompt
    return prompt[turn.number] if turn.number < len(prompt) else END


@dataclass(slots=True)
class _Seat:
    sampling: SeatSampling
    num_prompt_tokens: int
    adapter: int | None
    pages: list[int] = field(default_factory=list)
    last_token: int | None = None


class ScriptedAdapter(msgspec.Struct, frozen=True):
    """What is read of a folder's `adapter_config.json`."""

    rank: int = msgspec.field(name="r")
    num_bytes: int = 0


class ScriptedAdapters:
    """Loads any folder that holds an `adapter_config.json`, for its rank `r`.

    Attributes:
        loaded: adapters by id.
    """

    def __init__(self) -> None:
        self.loaded: dict[int, AdapterWeights] = {}

    def read(self, path: str, report: Report) -> ScriptedAdapter:
        """The settings in the folder `path`.

        Raises:
            CheckpointError: there are none.
        """
        report("adapter", 1.0)
        try:
            return msgspec.json.decode((Path(path) / "adapter_config.json").read_bytes(), type=ScriptedAdapter)
        except (OSError, msgspec.MsgspecError) as error:
            raise CheckpointError(f"{path} holds no adapter_config.json with a rank") from error

    def put(self, adapter: int, weights: AdapterWeights) -> None:
        """Take it in."""
        self.loaded[adapter] = weights

    def drop(self, adapter: int) -> None:
        """Let it go."""
        del self.loaded[adapter]


@dataclass(slots=True)
class _Undrawn:
    """A step that waits for masks, or did."""

    step: Step
    result: StepResult | None = None

    def read(self) -> StepResult:
        assert self.result is not None, "nobody waits for a step whose masks have not come"
        return self.result


class ScriptedExecutor:
    """A `StepExecutor` whose pages hold token ids instead of keys and values, so that any mix-up of pages shows.

    Args:
        before_step: called with each step on the submit thread; may block, or raise to fail the step.
    """

    def __init__(
        self, script: Script, capacity: Capacity, before_step: Callable[[Step], None] | None, step_seconds: float
    ) -> None:
        self._script = script if callable(script) else _answer(script)
        self._capacity = capacity
        self._before_step = before_step
        self._step_seconds = step_seconds
        self._seats: dict[int, _Seat] = {}
        self._slots: dict[int, tuple[int | None, int]] = {}
        self.adapters = ScriptedAdapters()
        self._undrawn: _Undrawn | None = None
        self._closed = threading.Event()

    def submit(self, step: Step) -> Callable[[], StepResult]:
        """Run the step at once."""
        for seat in step.released:
            del self._seats[seat]
        for taken in step.taken:
            self._take(taken)
        for chunk in step.chunks:
            self._seats[chunk.seat].pages.extend(chunk.new_pages)
        if self._before_step is not None:
            self._before_step(step)
        if self._step_seconds:
            self._closed.wait(self._step_seconds)
        for chunk in step.chunks:
            self._write(chunk)
        if any(chunk.masked for chunk in step.chunks):
            self._undrawn = undrawn = _Undrawn(step)
            return undrawn.read
        result = tuple(self._result(chunk) for chunk in step.chunks)
        return lambda: result

    def put_masks(self, step_number: int, masks: TokenMasks) -> None:
        """Draw the tokens of the last step: what a mask does not allow becomes the first token that it does."""
        undrawn, self._undrawn = self._undrawn, None
        assert undrawn is not None, "a step with masked chunks came before"
        assert undrawn.step.number == step_number, "masks are those of the last step"
        undrawn.result = tuple(
            self._result(chunk, masks.get(number)) for number, chunk in enumerate(undrawn.step.chunks)
        )

    def close(self) -> None:
        """End a delay in progress."""
        self._closed.set()

    def _take(self, taken: SeatTaken) -> None:
        assert taken.seat not in self._seats, "a seat is taken after its release"
        assert taken.adapter is None or taken.adapter in self.adapters.loaded, "the adapter is loaded"
        self._seats[taken.seat] = _Seat(taken.sampling, taken.num_prompt_tokens, taken.adapter)

    def _write(self, chunk: Chunk) -> None:
        seat = self._seats[chunk.seat]
        token_ids = chunk.token_ids
        if token_ids is None:
            assert seat.last_token is not None, "a decode chunk follows a drawn token"
            token_ids = (seat.last_token,)
        assert len(token_ids) == chunk.num_tokens
        for offset, token_id in enumerate(token_ids):
            self._slots[self._slot(seat, chunk.start + offset)] = (seat.adapter, token_id)

    def _result(self, chunk: Chunk, mask: bytes | None = None) -> Sampled | None:
        drawn = self._sample(chunk, mask) if chunk.sample else None
        if chunk.readout is None:
            return drawn
        scores, hidden = self._read_out(chunk, chunk.readout)
        return msgspec.structs.replace(drawn or Sampled(()), scores=scores, hidden=hidden)

    def _read_out(self, chunk: Chunk, readout: Readout) -> tuple[tuple[SampledLogprobs, ...], bytes]:
        """A token's score tells the token and the one before; a hidden state tells its token."""
        seat, first = self._seats[chunk.seat], chunk.start + readout.first_row
        before = self._read(seat, first, first + len(readout.next_token_ids))
        scores = [
            _logprobs(scripted_logprob(last, token_id), token_id, readout.num_logprobs, rank=1)
            for last, token_id in zip(before, readout.next_token_ids, strict=True)
        ]
        if readout.pooling is None:
            return tuple(scores), b""
        end = chunk.start + chunk.num_tokens
        token_ids = self._read(seat, end - 1 if readout.pooling is Pooling.LAST else first, end)
        hidden = [0.0] * HIDDEN_SIZE
        for token_id in token_ids:
            hidden[token_id % HIDDEN_SIZE] += 1.0
        return tuple(scores), struct.pack(f"<{HIDDEN_SIZE}f", *hidden)

    def _sample(self, chunk: Chunk, mask: bytes | None = None) -> Sampled:
        """One token, and more while they agree with the chunk's guesses."""
        end = chunk.start + chunk.num_tokens
        guesses = chunk.token_ids[-chunk.num_drafts :] if chunk.num_drafts and chunk.token_ids else ()
        drawn = [self._draw(chunk.seat, end - len(guesses), mask, 0)]
        for number, guess in enumerate(guesses, start=1):
            if drawn[-1].token_ids != (guess,):
                break
            drawn.append(self._draw(chunk.seat, end - len(guesses) + number, mask, number))
        if drawn[-1].failure is not None:
            return drawn[-1]
        logprobs = [entry for sampled in drawn for entry in sampled.logprobs or ()]
        return Sampled(tuple(sampled.token_ids[0] for sampled in drawn), tuple(logprobs) or None)

    def _draw(self, seat_number: int, position: int, mask: bytes | None, row: int) -> Sampled:
        seat = self._seats[seat_number]
        forced = self._forced(seat.sampling)
        token_id = self._script(Turn(seat, position, self._read)) if forced is None else forced
        blocked = seat.sampling.blocked_token_ids if position < seat.sampling.blocked_below_position else ()
        if token_id in blocked:
            token_id = ord("_")
        if mask is not None:
            allowed = [allowed_id for allowed_id in _allowed(mask, row) if allowed_id not in blocked]
            if not allowed:
                return Sampled((), failure="the mask allows no token that may be drawn")
            if token_id not in allowed:
                token_id = allowed[0]
        seat.last_token = token_id
        num_logprobs = seat.sampling.num_logprobs
        if num_logprobs is None:
            return Sampled((token_id,))
        logprobs = _logprobs(-0.25, token_id, num_logprobs)
        asked = tuple(-0.5 - asked_id / VOCAB_SIZE for asked_id in seat.sampling.logprob_token_ids)
        return Sampled((token_id,), (msgspec.structs.replace(logprobs, asked=asked),))

    def _forced(self, sampling: SeatSampling) -> int | None:
        bias = sampling.logit_bias or {}
        return next((token_id for token_id, value in bias.items() if value >= 100), None)

    def _slot(self, seat: _Seat, position: int) -> int:
        page_size = self._capacity.page_size
        return seat.pages[position // page_size] * page_size + position % page_size

    def _read(self, seat: _Seat, start: int, end: int) -> list[int]:
        slots = [self._slots[self._slot(seat, position)] for position in range(start, end)]
        assert all(adapter == seat.adapter for adapter, _ in slots), "a page belongs to one adapter"
        return [token_id for _, token_id in slots]


def scripted_model(
    script: Script = babble,
    *,
    num_pages: int = 512,
    max_model_len: int = 2048,
    before_step: Callable[[Step], None] | None = None,
    step_seconds: float = 0.0,
    answer_format: AnswerFormat | None = None,
    chat_format: ChatFormat | None = None,
) -> ModelLoader:
    """A loader for `Engine(loader=...)`: answers by script.

    Args:
        script: what to answer.
        num_pages: size of the KV pool, in pages.
        before_step: called with each step before it runs; may block, or raise to fail the step.
        step_seconds: how long each step takes.
        answer_format: how it marks reasoning and writes tool calls; neither, if left out.
        chat_format: what renders conversations, else `PlainChatFormat`.
    """

    def load(config: EngineConfig, report: Report) -> LoadedModel:
        report("script", 1.0)
        capacity = Capacity(
            num_pages=num_pages,
            page_size=config.page_size,
            num_seats=config.num_seats("cpu"),
            max_num_batched_tokens=config.tokens_per_step("cpu"),
            max_model_len=config.max_model_len or max_model_len,
            vocab_size=VOCAB_SIZE,
        )
        executor = ScriptedExecutor(script, capacity, before_step, step_seconds)
        return LoadedModel(
            name="scripted",
            vocabulary=ByteVocabulary(),
            chat_format=chat_format or PlainChatFormat(),
            answer_format=answer_format or AnswerFormat(),
            executor=executor,
            adapters=executor.adapters,
            capacity=capacity,
            embedding=EmbeddingSettings(num_dimensions=HIDDEN_SIZE),
            eos_token_ids=frozenset({END}),
        )

    return load


def scripted_engine(
    script: Script = babble,
    *,
    num_pages: int = 512,
    before_step: Callable[[Step], None] | None = None,
    step_seconds: float = 0.0,
    answer_format: AnswerFormat | None = None,
    chat_format: ChatFormat | None = None,
    **options: Unpack[EngineOptions],
) -> Engine:
    """An engine, not started yet, over `scripted_model`; `options` as for `Engine`."""
    loader = scripted_model(
        script,
        num_pages=num_pages,
        before_step=before_step,
        step_seconds=step_seconds,
        answer_format=answer_format,
        chat_format=chat_format,
    )
    return Engine("scripted", loader=loader, **options)


def scripted_logprob(last: int, token_id: int) -> float:
    """The score of a prompt's token behind `last`."""
    return -0.25 - (last * 7 + token_id) % 64 / 64


def _logprobs(logprob: float, token_id: int, num_best: int, rank: int | None = None) -> SampledLogprobs:
    best = tuple((token_id + place) % VOCAB_SIZE for place in range(num_best))
    return SampledLogprobs(logprob, best, tuple(logprob - place for place in range(num_best)), rank=rank)


def _answer(answer: str | bytes) -> Callable[[Turn], int]:
    token_ids = [*(answer.encode() if isinstance(answer, str) else answer), END]
    return lambda turn: token_ids[min(turn.number, len(token_ids) - 1)]


def _allowed(mask: bytes, row: int) -> Sequence[int]:
    """Tokens that row number `row` of a masked chunk may draw."""
    bits = int.from_bytes(mask[row * MASK_BYTES : (row + 1) * MASK_BYTES], "little")
    return [token_id for token_id in range(VOCAB_SIZE) if bits >> token_id & 1]


def _plain_text(content: object) -> str:
    if isinstance(content, list | tuple):
        return "".join(part.get("text", "") for part in content)
    return "" if content is None else str(content)
