"""The model-runner actor: owns the device through two threads, one that submits steps and one that waits for them.

All calls into the executor, loading included, come from the submit thread; only the wait for a result runs on the
completion thread. So the next step can be enqueued while the device still works on the last one.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from limelight.actors.channel import Channel, Sender
from limelight.actors.messages import (
    DeviceLost,
    DropAdapter,
    Masks,
    PutAdapter,
    StepDone,
    StepFailed,
    StepTimes,
    ToModelRunner,
    ToScheduler,
)
from limelight.actors.step_order import StepOrder, Submission
from limelight.actors.worker_thread import BusyThread, WorkerThreads, post
from limelight.errors import EngineFailed
from limelight.models.loaded_model import AdapterLoader, LoadedModel
from limelight.step import Step, StepExecutor, StepResult

logger = logging.getLogger(__name__)


class ModelRunner:
    """Runs steps in order and reports each exactly once, in order, to the scheduler.

    An `EngineFailed` raised by the executor (a device that no later step can use), or anything that is not an
    `Exception`, ends the actor; any other error fails its step only.

    Args:
        inbox: at most the steps in flight and their masks, one `DeviceLost`, and two messages for each adapter.
        scheduler: who is told.

    Raises:
        RuntimeError: the system has no thread left to give.
    """

    name = "model runner"

    def __init__(self, inbox: Channel[ToModelRunner], scheduler: Sender[ToScheduler]) -> None:
        self.inbox = inbox
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._executor: StepExecutor | None = None  # this one and the next two are used on the submit thread only
        self._order: StepOrder | None = None
        self._adapters: AdapterLoader | None = None
        self._submit_thread = WorkerThreads("limelight-submit")
        try:
            self._completion_thread = WorkerThreads("limelight-complete")
        except BaseException:
            self._submit_thread.end()
            raise

    async def load(self, loader: Callable[[], LoadedModel]) -> LoadedModel:
        """Run `loader` on the submit thread and keep the executor that it makes.

        If the wait is cancelled, the load still runs to its end on the thread, and `close` gives its memory back.

        Raises:
            Exception: whatever `loader` raises.
        """
        return await self._submit_thread.call(partial(self._load, loader))

    async def run(self) -> None:
        """Hand steps to the submit thread, until cancelled.

        Raises:
            EngineFailed: the device is lost.
        """
        while True:
            for message in await self.inbox.drain():
                match message:
                    case Step() | Masks():
                        self._submit_thread.put(partial(self._submit, message))
                    case PutAdapter() | DropAdapter():
                        self._submit_thread.put(partial(self._change_adapters, message))
                    case DeviceLost(error):
                        raise EngineFailed(f"the device is lost: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Wait for the submitted steps, close the executor on its own thread, end both threads. Idempotent.

        The threads do this by themselves: a wait that is cancelled leaves nothing behind.
        """
        await self._submit_thread.close(last=self._close_executor)

    def busy_threads(self) -> list[BusyThread]:
        """Those of its threads that are at something."""
        return [*self._submit_thread.busy(), *self._completion_thread.busy()]

    # ---- on the submit thread

    def _load(self, loader: Callable[[], LoadedModel]) -> LoadedModel:
        model = loader()
        self._executor = model.executor
        self._order = StepOrder(model.executor, self._put_completion)
        self._adapters = model.adapters
        return model

    def _change_adapters(self, message: PutAdapter | DropAdapter) -> None:
        assert self._order is not None, "load comes before the first adapter"
        self._order.call(partial(self._change_adapters_now, message))

    def _change_adapters_now(self, message: PutAdapter | DropAdapter) -> None:
        assert self._adapters is not None, "adapters are read by the model that takes them"
        error: Exception | None = None
        try:
            if isinstance(message, PutAdapter):
                self._adapters.put(message.adapter, message.weights)
            else:
                self._adapters.drop(message.adapter)
        except Exception as own_error:  # noqa: BLE001 - whoever asked hears of it; steps go on
            error = own_error
        post(self._loop, message.answer, error)

    def _submit(self, message: Step | Masks) -> None:
        assert self._order is not None, "load comes before the first step"
        if isinstance(message, Step):
            self._order.submit(message)
        else:
            self._order.put_masks(message)

    def _put_completion(self, number: int, wait: Callable[[], StepResult], submission: Submission) -> None:
        # Failures take the same way as results, so that they are reported in the order of the steps.
        self._completion_thread.put(partial(self._complete, number, wait, submission))

    def _close_executor(self) -> None:
        self._completion_thread.end()
        self._completion_thread.join()
        executor, self._executor, self._order, self._adapters = self._executor, None, None, None
        if executor is None:
            return
        try:
            executor.close()
        except Exception:  # the engine must end all the same
            logger.exception("closing the model failed; its memory may not have been given back")

    # ---- on the completion thread

    def _complete(self, number: int, wait: Callable[[], StepResult], submission: Submission) -> None:
        try:
            result = wait()
        except EngineFailed as error:
            post(self._loop, self.inbox.sender.tell, DeviceLost(error))
        except Exception as error:  # noqa: BLE001 - where a step runs
            post(self._loop, self._scheduler.tell, StepFailed(number, error, StepTimes(*submission, time.monotonic())))
        except BaseException as error:  # noqa: BLE001 - the thread must not vanish silently
            post(self._loop, self.inbox.sender.tell, DeviceLost(error))
        else:
            times = StepTimes(*submission, time.monotonic())
            post(self._loop, self._scheduler.tell, StepDone(number, result, times))
