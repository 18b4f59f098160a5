"""Replay bundles on their way to the disk. No actor: it lives on the loop with the engine, and writes on a thread.

Whatever goes wrong here is logged, and no request hears of it.
"""

import logging
from functools import partial

from limelight.actors.recorder import RequestRecorder, ScheduleRecorder
from limelight.actors.worker_thread import WorkerThreads
from limelight.config import EngineConfig
from limelight.errors import InvalidRequest, LimelightError, UnsupportedField
from limelight.generation import Completion, GenerationRequest
from limelight.models.loaded_model import LoadedModel
from limelight.models.surroundings import machine, versions
from limelight.replay.bundle import Bundle, ModelIdentity, encode
from limelight.replay.folder import RecordFolder, check_record_id
from limelight.telemetry.log_fields import of_request

logger = logging.getLogger(__name__)

MAX_UNWRITTEN = 16
"""Bundles that wait for a slow disk; one more is given up."""


class Records:
    """The recorded requests of a running engine.

    Args:
        folder: None: nothing is recorded.

    Attributes:
        schedule: what the step ledger tells.
    """

    def __init__(self, folder: RecordFolder | None, config: EngineConfig, model: LoadedModel) -> None:
        self.schedule = ScheduleRecorder()
        self._folder = folder
        self._config = config
        self._model = model
        self._threads = None if folder is None else WorkerThreads("limelight-records")
        self._num_unwritten = 0
        self._identity: ModelIdentity | None = None  # found out on the thread, which alone has to do with it

    def check(self, request: GenerationRequest) -> None:
        """Whether `request` can be recorded, if it wants to be.

        Raises:
            UnsupportedField: this engine has no folder for that, or nothing is drawn.
            InvalidRequest: no file can have its `record_id`.
        """
        if request.record_id is None:
            return
        check_record_id(request.record_id)
        if self._folder is None:
            raise UnsupportedField(
                "this server records no requests: start it with --record-dir; in Python, give Engine a record_dir",
                param="record_id",
            )
        if request.pooling is not None:
            raise UnsupportedField("embeddings draw no tokens that could be replayed", param="record_id")

    def begin(self, request: GenerationRequest) -> RequestRecorder | None:
        """What is told of a request that has been admitted, `sampling.seed` set; None: it is not recorded."""
        if request.record_id is None:
            return None
        recorder = self.schedule.recorders[request.request_id] = RequestRecorder(request)
        return recorder

    def end(
        self,
        recorder: RequestRecorder,
        completions: tuple[Completion, ...],
        error: LimelightError | None,
        cached_tokens: int,
    ) -> None:
        """A recorded request has ended, its last step may still be under way: write its bundle. Never waits."""
        request_id = recorder.request.request_id
        del self.schedule.recorders[request_id]
        recorder.ended(completions, None if error is None else error.code, cached_tokens)
        assert self._threads is not None, "without a folder nothing is recorded"
        if self._num_unwritten >= MAX_UNWRITTEN:
            logger.error(
                "request %s: its replay bundle is given up: %d others wait to be written",
                request_id,
                self._num_unwritten,
                extra=of_request(request_id),
            )
            return
        self._num_unwritten += 1
        written = self._threads.call(partial(self._write, recorder))
        written.add_done_callback(lambda _: self._written())

    async def close(self) -> None:
        """Write what waits, and end the thread."""
        if self._threads is not None:
            self._threads.end()
            await self._threads.close()

    def _written(self) -> None:
        self._num_unwritten -= 1

    def _write(self, recorder: RequestRecorder) -> None:
        """On the thread."""
        request_id, record_id = recorder.request.request_id, recorder.request.record_id
        assert self._folder is not None, "without a folder nothing is recorded"
        assert record_id is not None, "only requests that want it are recorded"
        try:
            self._folder.write(record_id, encode(self._bundle(recorder, record_id)))
        except (OSError, InvalidRequest) as error:
            logger.error(  # noqa: TRY400 - what the disk says is enough
                "request %s: its replay bundle cannot be written to %s: %s",
                request_id,
                self._folder.path,
                getattr(error, "strerror", None) or error,
                extra=of_request(request_id),
            )
        except Exception as error:  # noqa: BLE001 - a bug here must not end the thread, nor show content
            logger.error("request %s: its replay bundle met a bug: %s", request_id, type(error).__name__)  # noqa: TRY400

    def _bundle(self, recorder: RequestRecorder, record_id: str) -> Bundle:
        request = recorder.request
        if self._identity is None:
            self._identity = self._model.identity()
        return Bundle(
            id=record_id,
            created=recorder.created,
            request_id=request.request_id,
            model=self._identity,
            versions=versions(),
            machine=machine(),
            config=self._config,
            capacity=self._model.capacity,
            prompt_token_ids=recorder.prompt_token_ids,
            sampling=request.sampling,
            stop_token_ids=recorder.stop_token_ids,
            reasoning=request.reasoning,
            adapter=request.adapter,
            priority=request.priority,
            error=recorder.error,
            cached_tokens=recorder.cached_tokens,
            choices=recorder.choices(),
            events=tuple(recorder.events),
            neighbours=recorder.neighbours,
            is_whole=recorder.is_whole,
            steps=tuple(recorder.steps),
        )
