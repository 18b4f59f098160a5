"""The composition root: builds the actors, admits requests, supervises, and speaks the four verbs of the Python API.

This is the only file that wires objects together. An engine lives in one asyncio event loop and leaves nothing behind.
"""

import asyncio
import contextvars
import enum
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

import anyio

from limelight.actors.channel import Channel, Sender
from limelight.actors.live_requests import LiveRequests
from limelight.actors.messages import ToScheduler, ToTokenizer
from limelight.actors.model_runner import ModelRunner
from limelight.actors.request import RequestActor
from limelight.actors.scheduler import SchedulerActor
from limelight.actors.scheduling.planner import Planner
from limelight.actors.supervision import supervise
from limelight.actors.tokenizer import TokenizerActor
from limelight.admission import check_token_ids, check_types, with_seed
from limelight.config import EngineConfig, EngineOptions
from limelight.errors import ConfigError, EngineFailed, EngineNotRunning, Overloaded
from limelight.generation import (
    MAX_CHOICES,
    ChatPrompt,
    Generation,
    GenerationRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from limelight.models.loaded_model import LoadedModel
from limelight.stream import Stream
from limelight.telemetry.statistics import EngineStatistics

if TYPE_CHECKING:
    from litestar import Litestar

    from limelight.http.settings import HttpSettings

logger = logging.getLogger(__name__)

Report = Callable[[str, float | None], None]
"""Told what the loader is doing and how far it is (0 to 1, or None); called on the model runner's thread."""

ModelLoader = Callable[[EngineConfig, Report], LoadedModel]


class EngineState(enum.StrEnum):
    """Where an engine is in its life."""

    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class Engine:
    """A model being served inside the caller's event loop.

    `async with Engine("org/model") as engine: ...`, or `start()` and `stop()`, which may come from different tasks.

    Args:
        model: a folder, a `.gguf` file, a hub id, a whole `EngineConfig`, or None for the embedded default model.
        loader: what loads the model (`limelight.models.loading.load_model` unless given).
        report: told about the progress of loading, on another thread.
        options: any other field of `EngineConfig`.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        model: str | Path | EngineConfig | None = None,
        *,
        loader: ModelLoader | None = None,
        report: Report | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        if isinstance(model, EngineConfig):
            if options:
                raise ConfigError(f"{', '.join(options)} given beside an EngineConfig; set them in the config")
            self.config = model
        else:
            self.config = EngineConfig(model=None if model is None else str(model), **options)
        self.failure: EngineFailed | None = None
        self._loader = loader
        self._report = report or _ignore
        self._state = EngineState.NEW
        self._owner: asyncio.Task[None] | None = None
        self._parts: _Parts | None = None
        self._loading: anyio.CancelScope | None = None  # made in start(): it belongs to a running loop
        self._ending = asyncio.Event()

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
        """
        if self._state is not EngineState.NEW:
            raise EngineNotRunning(f"this engine is {self._state}; an engine starts once, make a new one")
        self._state = EngineState.LOADING
        self._loading = anyio.CancelScope()
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The only create_task: this task holds the task group from start to stop, whoever calls those two. Its context
        # is empty: it must not keep the caller's context variables (spans, sessions) alive.
        self._owner = asyncio.create_task(
            self._own(started, self._loading), name="limelight-engine", context=contextvars.Context()
        )
        try:
            await started
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all requests, then the actors and threads. Idempotent; waits for the step in hand.

        Live requests fail with `EngineNotRunning`. Memory of the model is given back. If the wait is cancelled by
        `Task.cancel`, the engine still ends by itself.

        Raises:
            EngineNotRunning: the engine runs in another event loop.
        """
        if self._owner is None or self._loading is None:
            self._state = EngineState.STOPPED
            return
        if self._owner.done():
            return  # also when its event loop has been closed
        if self._owner.get_loop() is not asyncio.get_running_loop():
            raise EngineNotRunning("the engine runs in another event loop; stop it from there")
        self._end()
        self._loading.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._owner])

    async def drain(self, timeout_seconds: float) -> bool:
        """Refuse new requests and wait until the live ones have finished.

        Returns:
            True if all finished in time. The engine stays up either way; call `stop` next.

        Raises:
            EngineNotRunning: the engine runs in another event loop.
        """
        if self._parts is None:
            return True
        if self._parts.loop is not asyncio.get_running_loop():
            raise EngineNotRunning("the engine runs in another event loop; drain it from there")
        live = self._parts.live
        if self._state is EngineState.READY:
            self._state = EngineState.DRAINING
        with anyio.move_on_after(timeout_seconds):
            await live.wait_until_empty()
        return len(live) == 0

    @property
    def state(self) -> EngineState:
        """Where the engine is in its life."""
        return self._state

    @property
    def model(self) -> LoadedModel:
        """The loaded model.

        Raises:
            EngineNotRunning: before `start` has finished, after `stop`, or from outside the engine's event loop.
            EngineFailed: an actor died.
        """
        return self._running_parts().model

    @property
    def model_name(self) -> str:
        """The name that the API serves the model under."""
        return self.config.served_model_name or self.model.name

    @property
    def default_sampling(self) -> SamplingParams:
        """What a request gets that sets nothing: the model's own defaults, up to the end of the context."""
        return self.model.defaults.params()

    def statistics(self) -> EngineStatistics:
        """Counts of requests, seats, pages and steps.

        Raises:
            EngineNotRunning, EngineFailed: as `model`.
        """
        parts = self._running_parts()
        planner, capacity = parts.planner, parts.model.capacity
        return EngineStatistics(
            num_requests=len(parts.live),
            num_running=planner.num_running,
            num_waiting=planner.num_waiting,
            num_seats=capacity.num_seats,
            num_free_seats=planner.num_free_seats,
            num_pages=capacity.num_pages,
            num_free_pages=planner.num_free_pages,
            num_cached_pages=planner.num_cached_pages,
            num_preemptions=planner.num_preemptions,
            num_steps=parts.scheduler.num_steps,
            step_seconds=parts.scheduler.step_seconds,
            prefix_queries_tokens=planner.prefix_queries_tokens,
            prefix_hits_tokens=planner.prefix_hits_tokens,
        )

    def app(self, settings: "HttpSettings | None" = None) -> "Litestar":
        """An ASGI application over this started engine, to run or to mount; short for `http.create_app(engine)`."""
        from limelight.http.app import create_app

        return create_app(self, settings=settings)

    # ---- the four verbs

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Generation:
        """Generate from text or token ids and return the whole; cancelling the call aborts the request.

        Raises:
            InvalidRequest: the prompt or a setting can never work.
            Overloaded: admission refused; try again later.
            EngineNotRunning, EngineFailed, StepFailure: the engine could not serve it.
        """
        stream = self.stream(prompt, sampling, request_id=request_id, priority=priority, cache_salt=cache_salt)
        async with stream as running:
            return await running.result()

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AbstractAsyncContextManager[Stream]:
        """Generate from text or token ids, delta by delta; leaving the block aborts what has not finished."""
        parsed = TextPrompt(prompt) if isinstance(prompt, str) else TokensPrompt(tuple(prompt))
        return self.open(self._request(parsed, sampling, request_id, priority, cache_salt))

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
    ) -> Generation:
        """Answer a conversation (OpenAI-shaped messages) and return the whole; raises what `generate` raises."""
        stream = self.stream_chat(
            messages,
            sampling,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
        )
        async with stream as running:
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
    ) -> AbstractAsyncContextManager[Stream]:
        """Answer a conversation, delta by delta; leaving the block aborts what has not finished.

        `add_generation_prompt` opens an assistant's turn, and is on unless `continue_final_message`, which goes on with
        the last message instead.
        """
        prompt = ChatPrompt(
            messages=tuple(messages),
            tools=None if tools is None else tuple(tools),
            add_generation_prompt=not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments or {},
        )
        return self.open(self._request(prompt, sampling, request_id, priority, cache_salt))

    @asynccontextmanager
    async def open(self, request: GenerationRequest) -> AsyncIterator[Stream]:
        """Admit a request and hold it: the verb below the other four.

        Raises:
            InvalidRequest: a value can never work with this model, or the id is in use.
            Overloaded: too many live requests, or draining.
            EngineNotRunning, EngineFailed: there is nothing to serve it.
        """
        actor = self._admit(request)
        subscription = actor.log.subscribe()
        try:
            yield Stream(actor, subscription)
        finally:
            subscription.close()

    # ---- admission

    def _request(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None,
        request_id: str | None,
        priority: int,
        cache_salt: str | None,
    ) -> GenerationRequest:
        return GenerationRequest(
            request_id=request_id or uuid.uuid4().hex,
            prompt=prompt,
            sampling=self.default_sampling if sampling is None else sampling,
            priority=priority,
            cache_salt=cache_salt,
        )

    def _admit(self, request: GenerationRequest) -> RequestActor:
        parts = self._running_parts()
        if self._ending.is_set():
            raise EngineNotRunning("the engine is being stopped")
        if self._state is EngineState.DRAINING:
            raise Overloaded("the server is shutting down; try another one", retry_after_seconds=5.0)
        parts.live.check(request.request_id)
        check_types(request)
        check_token_ids(request, parts.model.capacity.vocab_size)
        actor = RequestActor(with_seed(request), parts.model, parts.to_tokenizer, parts.to_scheduler, time.monotonic())
        parts.live.add(actor)
        return actor

    def _running_parts(self) -> "_Parts":
        if self.failure is not None:
            raise self.failure.again()
        if self._parts is None:
            raise EngineNotRunning(
                f"the engine is {self._state}; use it inside `async with Engine(...)` or after start()"
            )
        if self._parts.loop is not _running_loop():
            raise EngineNotRunning("the engine runs in another event loop; call it from there, or use the class LLM")
        return self._parts

    # ---- the owner task

    async def _own(self, started: "asyncio.Future[None]", loading: anyio.CancelScope) -> None:
        """Load, serve until told to end, take everything down; `started` is resolved in every case."""
        capacity = self.config.max_num_requests * (MAX_CHOICES + 2) + 2 * self.config.pipeline_depth
        scheduler_inbox: Channel[ToScheduler] = Channel("scheduler", capacity)
        error: BaseException = EngineNotRunning("the engine was stopped while it was loading")
        try:
            runner = ModelRunner(Channel("model runner", self.config.pipeline_depth + 2), scheduler_inbox.sender)
            try:
                model = None
                with loading:
                    model = await runner.load(partial(self._loader or _default_loader, self.config, self._report))
                if model is not None:
                    await self._serve(model, runner, scheduler_inbox, started)
            finally:
                with anyio.CancelScope(shield=True):
                    await runner.close()
        except Exception as own_error:  # noqa: BLE001 - the caller of start() hears of it, or else everybody
            error = own_error
            if started.done() and not started.cancelled():
                failure = EngineFailed(f"the engine broke: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._died(failure)
        finally:
            self._state = EngineState.STOPPED if self.failure is None else EngineState.FAILED
            _resolve(started, error)

    async def _serve(
        self,
        model: LoadedModel,
        runner: ModelRunner,
        scheduler_inbox: Channel[ToScheduler],
        started: "asyncio.Future[None]",
    ) -> None:
        """Run the actors until `stop`, or until one of them dies."""
        config = self.config
        planner = Planner(
            model.capacity, prefix_caching=config.enable_prefix_caching, pipeline_depth=config.pipeline_depth
        )
        scheduler = SchedulerActor(scheduler_inbox, planner, runner.inbox.sender, model.capacity.vocab_size)
        tokenizer_inbox: Channel[ToTokenizer] = Channel("tokenizer", config.max_num_requests + 1)
        tokenizer = TokenizerActor(tokenizer_inbox, model.vocabulary, model.chat_format, model.capacity.max_model_len)
        try:
            async with anyio.create_task_group() as group:
                for actor in (runner, scheduler, tokenizer):
                    group.start_soon(supervise, actor, self._died, self._end)
                live = LiveRequests(config.max_num_requests, group, self._died)
                loop = asyncio.get_running_loop()
                self._parts = _Parts(
                    loop, model, planner, scheduler, tokenizer, scheduler_inbox.sender, tokenizer_inbox.sender, live
                )
                self._state = EngineState.READY
                _resolve(started, None)
                try:
                    await self._ending.wait()
                finally:
                    self._end()
                    live.fail_all(self.failure or EngineNotRunning("the engine was stopped"))
                    group.cancel_scope.cancel()
        finally:
            self._parts = None
            self._state = EngineState.STOPPED if self.failure is None else EngineState.FAILED
            with anyio.CancelScope(shield=True):
                await tokenizer.close()

    def _end(self) -> None:
        """Let the owner take everything down; from now on nobody is admitted. Idempotent."""
        if self._state is EngineState.READY:
            self._state = EngineState.DRAINING
        self._ending.set()

    def _died(self, failure: EngineFailed) -> None:
        """An actor is dead: tell everybody at once, then take the engine down."""
        if self.failure is None:
            self.failure = failure
            self._state = EngineState.FAILED
            logger.critical("%s", failure, exc_info=failure.__cause__)
            if self._parts is not None:
                self._parts.live.fail_all(failure)
            self._end()


class _Parts(NamedTuple):
    """What exists only while the engine is up."""

    loop: asyncio.AbstractEventLoop
    model: LoadedModel
    planner: Planner
    scheduler: SchedulerActor
    tokenizer: TokenizerActor
    to_scheduler: Sender[ToScheduler]
    to_tokenizer: Sender[ToTokenizer]
    live: LiveRequests


def _resolve(started: "asyncio.Future[None]", error: BaseException | None) -> None:
    if started.done():
        return
    if error is None:
        started.set_result(None)
    else:
        started.set_exception(error)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _default_loader(config: EngineConfig, report: Report) -> LoadedModel:
    from limelight.models.loading import load_model  # imports torch, so only now

    return load_model(config, report)


def _ignore(what: str, fraction: float | None) -> None:
    """The report of nobody interested."""
