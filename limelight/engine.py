"""The Python API: an engine and its verbs. What runs behind them is wired in `actor_system.py`."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio.to_thread
import msgspec
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider
from prometheus_client import CollectorRegistry

from limelight.actor_system import ActorSystem
from limelight.actor_system import BackgroundTask as BackgroundTask
from limelight.admission import check_ids
from limelight.config import EngineConfig, EngineOptions
from limelight.embeddings import Embedding, EmbeddingSettings
from limelight.errors import (
    ConfigError,
    EngineFailed,
    EngineNotRunning,
    LimelightError,
    RequestCancelled,
    UnsupportedField,
)
from limelight.generation import (
    ChatPrompt,
    Deadlines,
    Generation,
    GenerationRequest,
    Prompt,
    SamplingParams,
    Share,
    TextPrompt,
    TokensPrompt,
)
from limelight.health import EngineHealth as EngineHealth
from limelight.health import EngineState as EngineState
from limelight.models.loaded_model import LoadedModel
from limelight.parsing.answer_format import AnswerFormat
from limelight.progress import Report as Report
from limelight.replay.folder import RecordFolder
from limelight.stream import Stream
from limelight.telemetry.counters import EngineCounters
from limelight.telemetry.genai_metrics import GenAIMetrics
from limelight.telemetry.live_view import LiveView
from limelight.telemetry.prometheus.collector import EngineCollector, register, unregister
from limelight.telemetry.prometheus.snapshot import Snapshot
from limelight.telemetry.request_view import RequestView
from limelight.telemetry.statistics import EngineStatistics, LoadedAdapter, QuotaStanding
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from litestar import Litestar

    from limelight.http.settings import HttpSettings

ModelLoader = Callable[[EngineConfig, Report], LoadedModel]
"""Called on the model runner's thread; tells the report what it does."""


class Engine:
    """A model being served inside the caller's event loop.

    `async with Engine("org/model") as engine: ...`, or `start()` and `stop()`, which may come from different tasks.

    Args:
        model: a folder, a `.gguf` file, a hub id, a whole `EngineConfig`, or None for the embedded default model.
        loader: what loads the model (`limelight.models.loading.load_model` unless given).
        report: told about the progress of loading, on another thread.
        tracer_provider: whose tracer makes the spans of requests and steps; the host's global one unless given.
        meter_provider: whose meter records the GenAI histograms; the host's global one unless given.
        metrics_registry: where the Prometheus metrics can be scraped while the engine runs; one of the engine's own
            unless given, so that two engines get along.
        options: any other field of `EngineConfig`.

    Attributes:
        live_view: its requests, one by one.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        model: str | Path | EngineConfig | None = None,
        *,
        loader: ModelLoader | None = None,
        report: Report | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        metrics_registry: CollectorRegistry | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        if isinstance(model, EngineConfig):
            if options:
                raise ConfigError(f"{', '.join(options)} given beside an EngineConfig; set them in the config")
            self.config = model
        else:
            self.config = EngineConfig(model=None if model is None else str(model), **options)
        self._load = loader or _default_loader
        self._report = report or _ignore
        self.telemetry = Telemetry(
            self.config, Tracing(self.config, tracer_provider), GenAIMetrics(meter_provider), EngineCounters()
        )
        self.metrics_registry = metrics_registry or CollectorRegistry()
        self._collector = EngineCollector(self._snapshot, vllm_metrics=self.config.vllm_metrics)
        self._known_model_name = self.config.served_model_name or self.config.model or "default"
        self._record_folder = _record_folder(self.config)
        self._system = ActorSystem(self.config, self._load_model, self.telemetry, self._record_folder)
        self.live_view = LiveView(self.telemetry, self._system.prompt_progress)

    # ---- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Load the model and start the actors; returns when the engine is ready for requests.

        Raises:
            ModelError: the model cannot be found, read or fitted.
            EngineNotRunning: the engine has been started before.
            NotOnAsyncio: trio runs the caller, say.
            ConfigError: `metrics_registry` has the metrics of another engine.
        """
        is_new = self.state is EngineState.NEW
        if is_new:
            register(self.metrics_registry, self._collector)
        try:
            await self._system.start()
        except BaseException:
            if is_new:
                unregister(self.metrics_registry, self._collector)
            raise
        self._known_model_name = self.model_name

    async def stop(self, timeout_seconds: float | None = None) -> None:
        """End all requests, then the actors and threads. Idempotent; waits for the step in hand.

        Live requests fail with `EngineNotRunning`. Memory of the model is given back. If the wait is cancelled by
        `Task.cancel`, the engine still ends by itself.

        Args:
            timeout_seconds: for each thread that is still busy; then it is `left_behind`. Default: the config's
                `step_timeout_seconds`.

        Raises:
            EngineNotRunning: the engine runs in another event loop.
        """
        try:
            await self._system.stop(timeout_seconds)
        finally:
            if self._system.ending:
                unregister(self.metrics_registry, self._collector)

    async def drain(self, timeout_seconds: float, *, notice_seconds: float = 0.0) -> bool:
        """Refuse new requests and wait until the live ones, and what runs in the background, have finished.

        Args:
            notice_seconds: for so long at first, requests are still taken while `health` (and with it `/readyz`) says
                not to send any: so long as load balancers need to notice. Not part of `timeout_seconds`.

        Returns:
            True if all finished in time. The engine stays up either way; call `stop` next.

        Raises:
            EngineNotRunning: the engine runs in another event loop.
        """
        return await self._system.drain(timeout_seconds, notice_seconds)

    def run_in_background(self, work: Callable[[], Awaitable[None]], name: str) -> BackgroundTask:
        """Run `work` as a task of the engine: it outlives its caller, and is cancelled when the engine ends.

        What it raises is logged, and neither the engine nor a request suffers from it. `drain` waits for it. It may
        call `stop`, and is cancelled by that.

        Args:
            name: what the log calls it.

        Raises:
            EngineNotRunning, EngineFailed: as `model`.
        """
        return self._system.run_in_background(work, name)

    @property
    def state(self) -> EngineState:
        """Where the engine is in its life."""
        return self._system.state

    def health(self) -> EngineHealth:
        """Whether it should get new requests, and what speaks against it; in every state."""
        return self._system.health()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Parts whose threads were still busy when the engine had ended: end the process to get rid of them."""
        return self._system.left_behind

    @property
    def failure(self) -> EngineFailed | None:
        """Why the engine failed, if an actor died or a step never ended."""
        return self._system.failure

    @property
    def model(self) -> LoadedModel:
        """The loaded model.

        Raises:
            EngineNotRunning: before `start` has finished, after `stop`, or from outside the engine's event loop.
            EngineFailed: an actor died.
        """
        return self._system.parts.model

    @property
    def model_name(self) -> str:
        """The name that the API serves the model under."""
        return self.config.served_model_name or self.model.name

    @property
    def default_sampling(self) -> SamplingParams:
        """What a request gets that sets nothing: the model's own defaults, up to the end of the context."""
        return self.model.defaults.params()

    @property
    def answer_format(self) -> AnswerFormat:
        """How the model marks its reasoning and writes tool calls."""
        return self.model.answer_format

    def statistics(self) -> EngineStatistics:
        """Counts of requests, seats, pages and steps.

        Raises:
            EngineNotRunning, EngineFailed: as `model`.
        """
        return self._system.statistics()

    def quota(self, share: Share) -> QuotaStanding | None:
        """What is left of the quota of `share` at this moment; None: it has none, or the engine is not up."""
        return self._system.quota(share)

    def num_requests_of(self, owner: str) -> int:
        """Live requests of `owner`."""
        return self._system.num_requests_of(owner)

    # ---- requests from outside

    def requests(self, recent: int = 0) -> tuple[RequestView, ...]:
        """The live requests, oldest first, and then the last `recent` ones that have ended, newest first.

        In every state of the engine; the last `EngineConfig.recent_requests` are remembered, refused ones included.
        """
        return (*self.live_view.live(), *self.live_view.recent(recent))

    def request_view(self, request_id: str) -> RequestView | None:
        """A live request, or one that is remembered; None: there is none with this id."""
        timeline = self.live_view.find(request_id)
        return None if timeline is None else self.live_view.of(timeline)

    def abort(self, request_id: str, reason: LimelightError | None = None) -> bool:
        """End a live request, whoever reads it; its readers meet `reason` (`RequestCancelled` unless given).

        Returns:
            whether there was one. Seats and pages come back with the loop's next turns.
        """
        return self._system.abort(request_id, reason or RequestCancelled(f"request {request_id} was aborted"))

    async def read_record(self, record_id: str) -> bytes | None:
        """The replay bundle of this name (JSON); None: there is none, or not yet, or not any more.

        Raises:
            UnsupportedField: there is no `record_dir`.
        """
        if self._record_folder is None:
            raise UnsupportedField(
                "this server records no requests: start it with --record-dir; in Python, give Engine a record_dir",
                param="record_id",
            )
        return await anyio.to_thread.run_sync(self._record_folder.read, record_id)

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, a conversation rendered by the model's template; any length, and nothing is generated.

        Raises:
            InvalidRequest: the prompt cannot be rendered or encoded.
            Overloaded: too many texts wait to be encoded.
            EngineNotRunning, EngineFailed: as `model`.
        """
        return (await self._system.parts.tokenizer.encode(prompt)).token_ids

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones written out; raises as `tokenize`.

        Raises:
            InvalidRequest: the model has no such token.
        """
        parts = self._system.parts
        check_ids("tokens", token_ids, parts.model.capacity.vocab_size)
        return await parts.tokenizer.decode(token_ids)

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, a part of a character as U+FFFD; raises as `detokenize`."""
        parts = self._system.parts
        check_ids("tokens", token_ids, parts.model.capacity.vocab_size)
        return await parts.tokenizer.texts(token_ids)

    def app(self, settings: "HttpSettings | None" = None) -> "Litestar":
        """An ASGI application over this started engine, to run or to mount; short for `http.create_app(engine)`."""
        from limelight.http.app import create_app

        return create_app(self, settings=settings)

    # ---- LoRA adapters

    async def load_adapter(self, name: str, path: str | Path) -> LoadedAdapter:
        """Load a LoRA adapter under a name that requests can give as `adapter`; other requests go on meanwhile.

        If it fails or is cancelled, nothing has changed.

        Args:
            path: a folder as peft writes it (`adapter_config.json`, `adapter_model.safetensors`), or a hub id.

        Raises:
            InvalidRequest: the name is impossible or in use, or `max_loras` are loaded.
            ModelError: the adapter is missing, corrupt, does not fit, or needs what is not supported.
            EngineNotRunning, EngineFailed: as `model`.
        """
        return await self._system.parts.adapters.load(name, str(path))

    async def unload_adapter(self, name: str) -> None:
        """Let no new request use an adapter, and return when its memory is free: when the last one that uses it ends.

        Cancelling the wait does not keep the adapter.

        Raises:
            ModelNotFound: no adapter has this name.
            EngineNotRunning, EngineFailed: as `model`.
        """
        await self._system.parts.adapters.unload(name)

    @property
    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """The adapters that requests can name, in the order of loading; raises as `model`."""
        return self._system.parts.adapters.described()

    # ---- the verbs

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> Generation:
        """Generate from text or token ids and return the whole; cancelling the call aborts the request.

        Raises:
            InvalidRequest: the prompt or a setting can never work.
            ModelNotFound: no adapter of this name is loaded.
            Overloaded: admission refused; try again later.
            DeadlineExceeded: `deadlines` left too little time.
            EngineNotRunning, EngineFailed, StepFailure: the engine could not serve it.
        """
        asked = self._request(_plain(prompt), sampling, request_id, priority, cache_salt, adapter, deadlines)
        async with self.open(asked) as running:
            return await running.result()

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> AbstractAsyncContextManager[Stream]:
        """Generate from text or token ids, delta by delta; leaving the block aborts what has not finished."""
        asked = self._request(_plain(prompt), sampling, request_id, priority, cache_salt, adapter, deadlines)
        return self.open(msgspec.structs.replace(asked, streams=True))

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> Generation:
        """Answer a conversation (OpenAI-shaped messages) and return the whole; raises what `generate` raises."""
        prompt = _conversation(messages, tools, add_generation_prompt, continue_final_message, template_arguments)
        asked = self._request(prompt, sampling, request_id, priority, cache_salt, adapter, deadlines)
        async with self.open(asked) as running:
            return await running.result()

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> AbstractAsyncContextManager[Stream]:
        """Answer a conversation, delta by delta; leaving the block aborts what has not finished.

        `add_generation_prompt` opens an assistant's turn, and is on unless `continue_final_message`, which goes on with
        the last message instead.
        """
        prompt = _conversation(messages, tools, add_generation_prompt, continue_final_message, template_arguments)
        asked = self._request(prompt, sampling, request_id, priority, cache_salt, adapter, deadlines)
        return self.open(msgspec.structs.replace(asked, streams=True))

    async def embed(
        self,
        prompt: str | Sequence[int],
        *,
        dimensions: int | None = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        deadlines: Deadlines | None = None,
    ) -> Embedding:
        """The vector of a text or of token ids: pooled and scaled as the model's folder says (`models/pooling.py`).

        Args:
            dimensions: keep the first so many numbers; None: all.

        Raises:
            UnsupportedField: this model makes no embeddings.
            InvalidRequest: the prompt is empty or too long, or `dimensions` is more than the model has.
            LimelightError: as `generate`.
        """
        settings = self.embedding_settings
        settings.check(dimensions)
        request = self._request(_plain(prompt), SamplingParams(), request_id, priority, cache_salt, adapter, deadlines)
        async with self.open(msgspec.structs.replace(request, pooling=settings.pooling)) as running:
            generation = await running.result()
        assert generation.pooled is not None, "it was asked for"
        return Embedding(settings.vector(generation.pooled, dimensions), generation.usage)

    @property
    def embedding_settings(self) -> EmbeddingSettings:
        """How the model makes embeddings.

        Raises:
            UnsupportedField: it makes none.
            EngineNotRunning, EngineFailed: as `model`.
        """
        settings = self.model.embedding
        if settings is None:
            raise UnsupportedField("this model makes no embeddings", param="model")
        return settings

    @asynccontextmanager
    async def open(self, request: GenerationRequest) -> AsyncIterator[Stream]:
        """Admit a request and hold it: the verb below the others.

        Raises:
            InvalidRequest: a value can never work with this model, or the id is in use.
            ModelNotFound: no adapter of this name is loaded.
            Overloaded: too many live requests, or draining.
            EngineNotRunning, EngineFailed: there is nothing to serve it.
        """
        timeline = self.telemetry.begin(request, request.adapter or self._known_model_name)
        try:
            actor = self._system.admit(request, timeline)
        except LimelightError as error:
            self.telemetry.end(timeline, error)
            raise
        except Exception as error:
            self.telemetry.end(timeline, LimelightError(f"the request met a bug: {type(error).__name__}"))
            raise
        subscription = actor.log.subscribe()
        try:
            yield Stream(actor, subscription, self._system.prompt_progress)
        finally:
            subscription.close()

    def _snapshot(self) -> Snapshot:
        """What a scrape finds; from any thread, in any state."""
        telemetry = self.telemetry
        live = tuple(telemetry.live.values())
        return Snapshot(
            model=self._known_model_name,
            state=self.state.value,
            states=tuple(state.value for state in EngineState),
            config=self.config,
            statistics=self._system.last_statistics(),
            counters=telemetry.counters,
            http=telemetry.http,
            heartbeat=telemetry.heartbeat,
            usage=telemetry.counters.usage.now(live),
            shares=telemetry.counters.shares.now(live, time.monotonic()),
            live=live,
        )

    def _request(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None,
        request_id: str | None,
        priority: int,
        cache_salt: str | None,
        adapter: str | None,
        deadlines: Deadlines | None,
    ) -> GenerationRequest:
        return GenerationRequest(
            request_id=request_id or uuid.uuid4().hex,
            prompt=prompt,
            sampling=self.default_sampling if sampling is None else sampling,
            priority=priority,
            cache_salt=cache_salt,
            adapter=adapter,
            deadlines=deadlines,
        )

    def _load_model(self) -> LoadedModel:
        """On the model runner's thread. A stop in the middle ends it at the next report of progress."""

        def report(what: str, fraction: float | None) -> None:
            if self._system.ending:
                raise EngineNotRunning("the engine was stopped while it was loading")
            self._report(what, fraction)

        return self._load(self.config, report)


def _plain(prompt: str | Sequence[int]) -> Prompt:
    return TextPrompt(prompt) if isinstance(prompt, str) else TokensPrompt(tuple(prompt))


def _conversation(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    template_arguments: Mapping[str, Any] | None,
) -> Prompt:
    return ChatPrompt(
        messages=tuple(messages),
        tools=None if tools is None else tuple(tools),
        add_generation_prompt=not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=continue_final_message,
        template_arguments=template_arguments or {},
    )


def _default_loader(config: EngineConfig, report: Report) -> LoadedModel:
    from limelight.models.loading import load_model  # imports much, so only now

    return load_model(config, report)


def _record_folder(config: EngineConfig) -> RecordFolder | None:
    if config.record_dir is None:
        return None
    return RecordFolder(Path(config.record_dir), config.max_records, config.max_record_bytes)


def _ignore(what: str, fraction: float | None) -> None:
    """The report of nobody interested."""
