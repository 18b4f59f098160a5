"""The actors of one engine from start to stop: wired, supervised, and taken down without a trace.

One owner task holds the task group all the time, so that any framework may call start and stop from different tasks.
"""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import anyio

from limelight.actors.adapters import Adapters
from limelight.actors.background import BackgroundTask as BackgroundTask
from limelight.actors.background import BackgroundTasks
from limelight.actors.channel import Channel
from limelight.actors.closing import SECONDS_FOR_A_THREAD, Closing
from limelight.actors.constraints import ConstraintsActor
from limelight.actors.live_requests import LiveRequests
from limelight.actors.messages import ToConstraints, ToScheduler, ToTokenizer
from limelight.actors.model_runner import ModelRunner
from limelight.actors.outcome import settle
from limelight.actors.quotas import Quotas
from limelight.actors.records import Records
from limelight.actors.request import RequestActor
from limelight.actors.scheduler import SchedulerActor
from limelight.actors.scheduling.prompt_progress import PromptProgress
from limelight.actors.step_ledger import StepLedger
from limelight.actors.supervision import supervise
from limelight.actors.tokenizer import TokenizerActor
from limelight.actors.watchdog import Watchdog
from limelight.config import MAX_PIPELINE_DEPTH, EngineConfig
from limelight.errors import EngineFailed, EngineNotRunning, LimelightError, NotOnAsyncio, Overloaded
from limelight.generation import MAX_CHOICES, GenerationRequest, Share
from limelight.health import WHAT_STATES_MEAN, EngineHealth, EngineState
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.loaded_model import LoadedModel
from limelight.replay.folder import RecordFolder
from limelight.running_parts import RunningParts, make_planner
from limelight.telemetry.loop_watch import LoopWatch
from limelight.telemetry.statistics import EngineStatistics, QuotaStanding
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import RequestTimeline

logger = logging.getLogger(__name__)

SECONDS_OF_A_LONG_LOAD = 5.0
"""After so long, grammars are prepared, too, which takes some tenths of a second; else with the first one."""


class ActorSystem:
    """Tokenizer, scheduler, model runner and the live requests.

    Args:
        config: the fields that concern scheduling are used.
        load: makes the model; called once, on the model runner's thread.
        telemetry: told of every admitted request's end, and of every step.
        record_folder: where replay bundles go; None: nowhere.

    Attributes:
        state: where in its life it is.
        failure: why it failed, if an actor died or a step never ended.
    """

    def __init__(
        self,
        config: EngineConfig,
        load: Callable[[], LoadedModel],
        telemetry: Telemetry,
        record_folder: RecordFolder | None = None,
    ) -> None:
        self.state = EngineState.NEW
        self.failure: EngineFailed | None = None
        self._config = config
        self._load = load
        self._telemetry = telemetry
        self._record_folder = record_folder
        self._owner: asyncio.Task[None] | None = None
        self._loading: anyio.CancelScope | None = None  # made in start(): it belongs to a running loop
        self._ending = asyncio.Event()
        self._is_leaving = False
        self._watchdog: Watchdog | None = None
        self._closing = Closing()
        self._parts: RunningParts | None = None

    async def start(self) -> None:
        """Load the model and start the actors; returns when the engine is ready for requests.

        Raises:
            ModelError: the model cannot be found, read or fitted.
            EngineNotRunning: the engine has been started before.
            NotOnAsyncio: trio runs the caller, say.
        """
        if self.state is not EngineState.NEW:
            raise EngineNotRunning(f"this engine is {self.state}; an engine starts once, make a new one")
        loop = _running_loop()
        if loop is None:
            raise NotOnAsyncio
        self.state = EngineState.LOADING
        self._loading = anyio.CancelScope()
        started: asyncio.Future[None] = loop.create_future()
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

    async def stop(self, timeout_seconds: float | None = None) -> None:
        """End all requests, then the actors and threads. Idempotent; waits for the step in hand.

        Live requests fail with `EngineNotRunning`. Memory of the model is given back. If the wait is cancelled by
        `Task.cancel`, the engine still ends by itself.

        Args:
            timeout_seconds: to wait for each thread that is busy, which is then `left_behind`; default: the config's
                `step_timeout_seconds`.

        Raises:
            EngineNotRunning: the engine runs in another event loop.
        """
        if self._owner is None or self._loading is None:
            self.state = EngineState.STOPPED
            return
        if self._owner.done():
            return  # also when its event loop has been closed
        if self._owner.get_loop() is not asyncio.get_running_loop():
            raise EngineNotRunning("the engine runs in another event loop; stop it from there")
        self._end()
        if timeout_seconds is not None:
            self._closing.give_up_within(timeout_seconds)
        self._loading.cancel()
        # Work of ours must not hold up the end that it asks for: its wait ends as the work does.
        is_own_work = self._parts is not None and self._parts.background.runs_caller
        with anyio.CancelScope(shield=not is_own_work):
            await asyncio.wait([self._owner])

    async def drain(self, timeout_seconds: float, notice_seconds: float = 0.0) -> bool:
        """Refuse new requests and wait until the live ones, and then the work in the background, have finished.

        Their spans are made then, too.

        Args:
            notice_seconds: for so long at first, requests are still taken while `health` says not to send any: so long
                as load balancers need to notice.

        Returns:
            True if all finished in time. The engine stays up either way; call `stop` next.

        Raises:
            EngineNotRunning: the engine runs in another event loop.
        """
        if self._parts is None:
            return True
        if self._parts.loop is not asyncio.get_running_loop():
            raise EngineNotRunning("the engine runs in another event loop; drain it from there")
        live, background = self._parts.live, self._parts.background
        self._is_leaving = True
        if notice_seconds and self.state is EngineState.READY:
            await anyio.sleep(notice_seconds)
        if self.state is EngineState.READY:
            self.state = EngineState.DRAINING
        with anyio.move_on_after(timeout_seconds):
            while live or background:  # either may begin another one of the other
                await live.wait_until_empty()
                await background.wait_until_empty()
            await self._telemetry.tracing.owed.wait_until_made()
        return not (live or background)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """The parts whose threads were still busy when it ended, by name; they keep their memory."""
        return self._closing.left_behind

    def health(self) -> EngineHealth:
        """Whether it should get new requests, and what speaks against it; in every state."""
        if self.state is not EngineState.READY:
            reason = str(self.failure) if self.failure is not None else WHAT_STATES_MEAN[self.state]
            return EngineHealth(self.state, (reason,))
        reasons = () if self._watchdog is None else self._watchdog.reasons
        if self._is_leaving:
            reasons = ("the server is about to stop", *reasons)
        return EngineHealth(self.state, reasons)

    @property
    def ending(self) -> bool:
        """Whether it has been told to end. May be read from any thread."""
        return self._ending.is_set()

    @property
    def parts(self) -> RunningParts:
        """What exists while it is up.

        Raises:
            EngineNotRunning: before `start` has finished, after `stop`, or from outside the event loop it runs in.
            EngineFailed: an actor died.
        """
        if self.failure is not None:
            raise self.failure.again()
        if self._parts is None:
            if self.state is EngineState.NEW:
                raise EngineNotRunning(
                    "the engine has not been started: use it inside `async with engine`, or after start(); an "
                    "application that is mounted into another one does not start its engine, the host must"
                )
            raise EngineNotRunning(f"the engine is {self.state}")
        if self._parts.loop is not _running_loop():
            raise EngineNotRunning("the engine runs in another event loop; call it from there, or use the class LLM")
        return self._parts

    def admit(self, request: GenerationRequest, timeline: RequestTimeline) -> RequestActor:
        """Let a request live, or refuse it.

        Raises:
            InvalidRequest: a value can never work with this model, or the id is in use.
            ModelNotFound: no adapter of this name is loaded.
            Overloaded: too many live requests, or draining.
            EngineNotRunning, EngineFailed: there is nothing to serve it.
        """
        parts = self.parts
        if self._ending.is_set():
            raise EngineNotRunning("the engine is being stopped")
        if self.state is EngineState.DRAINING:
            raise Overloaded("the server is shutting down; try another one", retry_after_seconds=5.0)
        return parts.admit(request, timeline)

    def run_in_background(self, work: Callable[[], Awaitable[None]], name: str) -> BackgroundTask:
        """Run `work` as a task that ends with the actors.

        Raises:
            EngineNotRunning, EngineFailed: there is nothing that it could end with.
        """
        parts = self.parts
        if self._ending.is_set():
            raise EngineNotRunning("the engine is being stopped")
        return parts.background.start(work, name)

    def prompt_progress(self, request_id: str) -> PromptProgress | None:
        """How far the prompt of a request is; None if the scheduler does not have it."""
        return None if self._parts is None else self._parts.planner.prompt_progress(request_id)

    def abort(self, request_id: str, reason: LimelightError) -> bool:
        """End a live request, and let its readers meet `reason`; returns whether there was one."""
        return self._parts is not None and self._parts.live.abort(request_id, reason)

    def quota(self, share: Share) -> QuotaStanding | None:
        """What is left of the quota of `share`; None: it has none, or nothing is up."""
        return None if self._parts is None else self._parts.quotas.standing(share)

    def num_requests_of(self, owner: str) -> int:
        """Live requests of `owner`."""
        return 0 if self._parts is None else self._parts.live.num_of_owner(owner)

    def statistics(self) -> EngineStatistics:
        """Counts of requests, seats, pages and steps.

        Raises:
            EngineNotRunning, EngineFailed: as `parts`.
        """
        return self.parts.statistics()

    def last_statistics(self) -> EngineStatistics | None:
        """The same for whoever only looks, from any thread; None while nothing is up."""
        parts = self._parts
        return None if parts is None else parts.statistics()

    # ---- the owner task

    async def _own(self, started: "asyncio.Future[None]", loading: anyio.CancelScope) -> None:
        """Load, serve until told to end, take everything down; `started` is resolved in every case."""
        # Of each request a `Submit` and its `Cancel`s, of each step its end, and one `DeliveryDue`.
        # A choice in a step in flight may fail for its constraint.
        capacity = self._config.max_num_requests * (2 * MAX_CHOICES + 2) + 2 * MAX_PIPELINE_DEPTH + 1
        scheduler_inbox: Channel[ToScheduler] = Channel("scheduler", capacity)
        error: BaseException = EngineNotRunning("the engine was stopped while it was loading")
        try:
            inbox_size = 2 * MAX_PIPELINE_DEPTH + 2 + 2 * self._config.max_loras
            runner = ModelRunner(Channel("model runner", inbox_size), scheduler_inbox.sender)
            adapters = Adapters(self._config.max_loras, runner.inbox.sender, self._check_going_on)
            try:
                model = None
                with loading:
                    began = asyncio.get_running_loop().time()
                    model = await runner.load(partial(self._load_all, adapters))
                    seconds = asyncio.get_running_loop().time() - began
                if model is not None:
                    async with contextlib.AsyncExitStack() as closings:  # of each part that could be made
                        await self._serve(model, seconds, runner, adapters, scheduler_inbox, started, closings)
            finally:
                await self._closing.close("model runner", runner.close)
        except Exception as own_error:  # noqa: BLE001 - the caller of start() hears of it, or else everybody
            error = own_error
            if started.done() and not started.cancelled():
                failure = EngineFailed(f"the engine broke: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._died(failure)
        finally:
            self.state = EngineState.STOPPED if self.failure is None else EngineState.FAILED
            settle(started, error)

    async def _serve(
        self,
        model: LoadedModel,
        load_seconds: float,
        runner: ModelRunner,
        adapters: Adapters,
        scheduler_inbox: Channel[ToScheduler],
        started: "asyncio.Future[None]",
        closings: contextlib.AsyncExitStack,
    ) -> None:
        """Run the actors until `stop`, or until one of them dies."""
        config = self._config
        records = Records(self._record_folder, config, model)
        closings.push_async_callback(self._closing.close, "replay bundles", records.close)
        closings.push_async_callback(self._closing.close, "adapters", adapters.close)
        ledger = StepLedger(self._telemetry, config.stall_seconds, records.schedule)
        planner = make_planner(config, model, ledger, ledger.step_costs)
        quotas = Quotas(time.monotonic)
        constraints_inbox: Channel[ToConstraints] = Channel(
            "constraints", config.max_num_requests + MAX_PIPELINE_DEPTH + 1
        )
        scheduler = SchedulerActor(
            scheduler_inbox,
            planner,
            runner.inbox.sender,
            constraints_inbox.sender,
            model.capacity.vocab_size,
            config.stream_interval,
            ledger,
            config.max_queued_tokens,
            quotas,
        )
        tokenizer_inbox: Channel[ToTokenizer] = Channel("tokenizer", config.max_num_requests + 1)
        tokenizer = TokenizerActor(
            tokenizer_inbox,
            model.vocabulary,
            model.chat_format,
            max_model_len=model.capacity.max_model_len,
            vocab_size=model.capacity.vocab_size,
        )
        closings.push_async_callback(self._closing.close, "tokenizer", tokenizer.close)
        constraints = ConstraintsActor(
            constraints_inbox,
            ConstraintCompiler(model.vocabulary, model.capacity.vocab_size, model.eos_token_ids),
            runner.inbox.sender,
            scheduler_inbox.sender,
        )
        closings.push_async_callback(self._closing.close, "constraints", constraints.close)
        try:
            if load_seconds >= SECONDS_OF_A_LONG_LOAD:
                await constraints.prepare()
            watching = closings.enter_context(contextlib.ExitStack())
            watching.enter_context(self._watched_loop())
            async with anyio.create_task_group() as group:
                for actor in (runner, scheduler, tokenizer, constraints):
                    group.start_soon(supervise, actor, self._died, self._end)
                live = LiveRequests(
                    config.max_num_requests,
                    group,
                    self._died,
                    partial(self._ended, adapters, records),
                    planner.seconds_until_free,
                )
                self._parts = RunningParts(
                    loop=asyncio.get_running_loop(),
                    model=model,
                    planner=planner,
                    scheduler=scheduler,
                    tokenizer=tokenizer,
                    adapters=adapters,
                    to_scheduler=scheduler_inbox.sender,
                    to_tokenizer=tokenizer_inbox.sender,
                    to_constraints=constraints_inbox.sender,
                    live=live,
                    quotas=quotas,
                    background=BackgroundTasks(group),
                    ledger=ledger,
                    records=records,
                    telemetry=self._telemetry,
                )
                self._watchdog = Watchdog(
                    planner,
                    ledger,
                    self._telemetry.counters,
                    {"tokenizer": tokenizer.threads, "constraints": constraints.compile_threads},
                    runner.busy_threads,
                    config.step_timeout_seconds,
                    self._is_hung,
                )
                group.start_soon(self._watchdog.run)
                group.start_soon(self._telemetry.heartbeat.run, self._parts.statistics)
                self.state = EngineState.READY
                settle(started)
                try:
                    await self._ending.wait()
                finally:
                    watching.close()
                    self._end()
                    adapters.end()
                    live.fail_all(self.failure or EngineNotRunning("the engine was stopped"))
                    group.cancel_scope.cancel()
        finally:
            if self._parts is not None:
                self._parts.live.close()
                self._parts.background.close()
            self._telemetry.tracing.owed.make_all()
            self._parts = None
            self.state = EngineState.STOPPED if self.failure is None else EngineState.FAILED

    def _ended(self, adapters: Adapters, records: Records, actor: RequestActor) -> None:
        """A request has ended: its adapter may leave, its numbers are complete, and so is its recording."""
        if actor.adapter is not None:
            adapters.release(actor.adapter)
        actor.observe_end()
        if actor.recorder is not None:
            error = actor.log.error
            completions = actor.log.completions() if error is None else ()
            records.end(actor.recorder, completions, error, actor.usage.cached_tokens)
        self._telemetry.end(actor.timeline, actor.log.error, actor.log.everything)

    def _load_all(self, adapters: Adapters) -> LoadedModel:
        """The model and the adapters of the config; on the model runner's thread."""
        if self._record_folder is not None:
            self._record_folder.prepare()
        model = self._load()
        try:
            adapters.begin(model, self._config.served_model_name or model.name, self._config.adapters.items())
        except BaseException:
            model.executor.close()
            raise
        return model

    def _check_going_on(self, what: str, fraction: float | None) -> None:
        """What a download of an adapter reports to: a stop in the middle ends it there."""
        if self._ending.is_set():
            raise EngineNotRunning("the engine was stopped while an adapter was being loaded")

    @contextlib.contextmanager
    def _watched_loop(self) -> Iterator[None]:
        """Inside, a thread watches the loop if the config says so."""
        if not self._config.loop_stall_seconds:
            yield
            return
        watch = LoopWatch(self._config.loop_stall_seconds, self._telemetry.counters)
        self._telemetry.heartbeat.on_beat = watch.beat
        with watch.watching():
            yield

    def _end(self) -> None:
        """Let the owner take everything down; from now on nobody is admitted. Idempotent."""
        if not self._ending.is_set() and self._config.step_timeout_seconds:
            self._closing.give_up_within(self._config.step_timeout_seconds)
        if self.state is EngineState.READY:
            self.state = EngineState.DRAINING
        self._ending.set()

    def _is_hung(self, failure: EngineFailed) -> None:
        """A step will never end, and nor will its thread."""
        self._closing.give_up_within(SECONDS_FOR_A_THREAD)
        self._died(failure)

    def _died(self, failure: EngineFailed) -> None:
        """An actor is dead: tell everybody at once, then take the engine down."""
        if self.failure is None:
            self.failure = failure
            self.state = EngineState.FAILED
            logger.critical("%s", failure, exc_info=failure.__cause__)
            if self._parts is not None:
                self._parts.live.fail_all(failure)
            self._end()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
