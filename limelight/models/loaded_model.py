"""What the engine needs of a model once it is loaded. No torch: a scripted model in tests fills the same shape."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from limelight.embeddings import EmbeddingSettings
from limelight.generation import ChatPrompt, SamplingParams
from limelight.parsing.answer_format import AnswerFormat
from limelight.progress import Report
from limelight.replay.bundle import ModelIdentity
from limelight.step import Capacity, StepExecutor


class Vocabulary(Protocol):
    """Text <-> token ids. Thread-safe: encoding runs in the tokenizer's threads, the rest on the loop."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written out in the text are recognised.

        Raises:
            InvalidRequest: `text` is not valid Unicode (a lone surrogate).
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Whole text of `token_ids`: their bytes joined and decoded as UTF-8, an invalid part becoming U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes that the token adds to a running text (a leading space included); b"" for ids without text."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, left out of the text by `skip_special_tokens`."""
        ...


class ChatFormat(Protocol):
    """The model's chat template."""

    def render(self, prompt: ChatPrompt) -> str:
        """The conversation as one string, to be encoded without adding special tokens.

        Raises:
            InvalidRequest: the model has no template, or the template refuses the messages (its own words are kept).
        """
        ...


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's makers recommend, used where a request leaves a value out; None: the API's default.

    From `generation_config.json`, or our own choice for the embedded default model.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def params(self) -> SamplingParams:
        """Sampling for a request that sets nothing: these defaults, up to the end of the context."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        return SamplingParams(**{"max_tokens": None, **values})


class AdapterWeights(Protocol):
    """A LoRA adapter in memory: opaque, but for its size."""

    @property
    def rank(self) -> int:
        """The largest rank of one of its matrices."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        ...


class AdapterLoader(Protocol):
    """The adapters of a model. `read` may run on any thread; the rest on the one that submits steps, between steps."""

    def read(self, path: str, report: Report) -> AdapterWeights:
        """The adapter in a folder or on the hub, checked against the model. Blocking.

        Args:
            path: a folder, `organisation/name`, or `hf://organisation/name`, which is never taken for a folder.
            report: called during a download.

        Raises:
            ModelError: it is missing, corrupt, does not fit the model or the memory, or needs what is not supported.
        """
        ...

    def put(self, adapter: int, weights: AdapterWeights) -> None:
        """Let steps use `weights`, which `read` gave, under the id `adapter`."""
        ...

    def drop(self, adapter: int) -> None:
        """Forget an adapter that no running sequence uses; its memory is free when this returns."""
        ...


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model ready to serve.

    Attributes:
        name: what the API calls it unless `served_model_name` says otherwise.
        eos_token_ids: the model's end-of-sequence tokens.
        memory_plan: lines for people: weights, KV pool, tokens, concurrency at given lengths.
        adapters: loads LoRA adapters; None for a model that takes none.
        answer_format: how it marks reasoning and writes tool calls.
        embedding: how it makes embeddings; None: it makes none.
        unreadable: why scores and hidden states of a prompt cannot be had; None: they can.
        overlaps_steps: steps run while the host does other things, so that two of them belong in flight.
        identify: says what runs, for replay bundles; reads files. None: its name is all that there is.
    """

    name: str
    vocabulary: Vocabulary
    chat_format: ChatFormat
    executor: StepExecutor
    capacity: Capacity
    eos_token_ids: frozenset[int]
    defaults: SamplingDefaults = SamplingDefaults()
    memory_plan: str = ""
    adapters: AdapterLoader | None = None
    answer_format: AnswerFormat = AnswerFormat()
    embedding: EmbeddingSettings | None = None
    unreadable: str | None = None
    overlaps_steps: bool = False
    identify: Callable[[], ModelIdentity] | None = None

    def identity(self) -> ModelIdentity:
        """What runs, as far as tokens can depend on it. Blocking."""
        return ModelIdentity(name=self.name) if self.identify is None else self.identify()
