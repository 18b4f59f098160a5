"""The constraints actor: compiles what outputs may be, and makes the masks of each step, all of it off the loop.

Compiling has threads of its own, so that a grammar which takes long keeps no step waiting. The rows of a step are
spread over the threads for masks. Foreign grammars run in native code that nothing can interrupt; so both have a time
limit, after which the request has failed, while its thread comes back when it is done.
"""

import asyncio
import contextlib
import logging
from functools import partial

from limelight.actors.channel import Channel, Sender
from limelight.actors.mask_making import MaskMaking
from limelight.actors.messages import (
    Compile,
    Compiled,
    ConstraintFailed,
    Failed,
    MakeMasks,
    Masks,
    ToConstraints,
    ToModelRunner,
    ToScheduler,
)
from limelight.actors.timed_answer import TimedAnswer
from limelight.actors.worker_thread import WorkerThreads
from limelight.errors import InvalidRequest, LimelightError, Overloaded
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.constraints.constraint import failure
from limelight.telemetry.log_fields import of_request, without_message

logger = logging.getLogger(__name__)

NUM_COMPILE_THREADS = 2
NUM_MASK_THREADS = 4
MAX_COMPILE_SECONDS = 10.0
MAX_MASK_SECONDS = 1.0


class ConstraintsActor:
    """Answers each `Compile` with `Compiled` or `Failed`, and each `MakeMasks` with `Masks` to the runner.

    Args:
        inbox: one `Compile` per live request and one `MakeMasks` per step in flight at most.
        max_compile_seconds, max_mask_seconds: what takes longer fails its request.

    Attributes:
        compile_threads: that compile.

    Raises:
        RuntimeError: the system has no thread left to give.
    """

    name = "constraints"

    def __init__(
        self,
        inbox: Channel[ToConstraints],
        compiler: ConstraintCompiler,
        runner: Sender[ToModelRunner],
        scheduler: Sender[ToScheduler],
        *,
        max_compile_seconds: float = MAX_COMPILE_SECONDS,
        max_mask_seconds: float = MAX_MASK_SECONDS,
    ) -> None:
        self._inbox = inbox
        self._compiler = compiler
        self._runner = runner
        self._scheduler = scheduler
        self._max_compile_seconds = max_compile_seconds
        self._max_mask_seconds = max_mask_seconds
        self._loop = asyncio.get_running_loop()
        self._pending: set[TimedAnswer] = set()
        self.compile_threads = WorkerThreads("limelight-compile", NUM_COMPILE_THREADS)
        try:
            self._mask_threads = WorkerThreads("limelight-masks", NUM_MASK_THREADS)
        except BaseException:
            self.compile_threads.end()
            raise

    async def prepare(self) -> None:
        """Let the first grammar not wait for what all of them need. If they cannot work, whoever asks for one hears."""
        with contextlib.suppress(InvalidRequest):
            await self.compile_threads.call(self._compiler.prepare)

    async def run(self) -> None:
        """Hand every message to the threads, until cancelled."""
        while True:
            for message in await self._inbox.drain():
                match message:
                    case Compile():
                        self._compile(message)
                    case MakeMasks():
                        MaskMaking(
                            message, self._mask_threads, self._loop, self._max_mask_seconds, self._tell_masks
                        ).start()

    async def close(self) -> None:
        """End the threads; what they are at is waited for, what is queued is dropped."""
        for answer in list(self._pending):
            answer.drop()
        self._mask_threads.drop_queued()
        self._mask_threads.end()  # told before any wait: one for a hung compilation is given up
        await self.compile_threads.close()
        await self._mask_threads.close()

    def _tell_masks(self, failures: list[ConstraintFailed], masks: Masks) -> None:
        for message in failures:
            logger.warning(
                "request %s: no mask for it (%s)",
                message.request_id,
                message.error.code,
                extra=of_request(message.request_id),
            )
            self._scheduler.tell(message)
        self._runner.tell(masks)

    def _compile(self, message: Compile) -> None:
        seconds = self._max_compile_seconds
        TimedAnswer(
            partial(self._compiled, message),
            message.reply_to,
            self.compile_threads,
            seconds,
            lambda: InvalidRequest(
                f"structured_outputs takes longer than {seconds:g} s to compile; make it simpler",
                param="structured_outputs",
            ),
            lambda: Overloaded(
                f"the threads that compile structured_outputs have been busy for {seconds:g} s; try again later",
                retry_after_seconds=seconds,
            ),
            self._pending,
        )

    def _compiled(self, message: Compile) -> Compiled | Failed:
        """On a compile thread."""
        try:
            return Compiled(self._compiler.compile(message.sampling, message.marks))
        except LimelightError as error:
            return Failed(error)
        except BaseException as error:  # a bug, or a panic in native code, fails its own request only
            logger.exception(
                "request %s: its constraints could not be compiled",
                message.request_id,
                exc_info=without_message(error),
                extra=of_request(message.request_id),
            )
            return Failed(failure(error))
