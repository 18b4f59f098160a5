"""The scheduler actor: owns sequences and pages, and decides each step. Everything it decides is in `scheduling/`.

The order of telling matters: results are applied, the next step is planned and told to the runner, and only then do the
requests hear of their tokens. So client work never sits in the device's gap.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from limelight.actors.channel import Channel, Sender
from limelight.actors.delivery import Deliveries, seconds_between_messages
from limelight.actors.mask_requests import MaskRequests
from limelight.actors.messages import (
    Cancel,
    ConstraintFailed,
    DeliveryDue,
    Failed,
    Generated,
    StepDone,
    StepFailed,
    Submit,
    ToConstraints,
    ToModelRunner,
    ToRequest,
    ToScheduler,
    choice_seed,
)
from limelight.actors.quotas import Quotas
from limelight.actors.scheduling.forecast import check_deadlines, check_queue
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.prompt_readout import PromptReadout
from limelight.actors.scheduling.sequence import Sequence, seat_sampling
from limelight.actors.step_ledger import StepLedger
from limelight.errors import EngineFailed, LimelightError, StepFailure
from limelight.telemetry.log_fields import of_request

logger = logging.getLogger(__name__)

FATAL_FAILURES = 16
"""Steps that fail in a row, of as many requests: the next process may do better."""


class SchedulerActor:
    """Turns `Submit`s into `Step`s, and step results into `Generated`s.

    Args:
        inbox: from all requests and from the runner.
        planner: used by nobody else while the actor runs.
        runner: told one `Step` at a time, up to the pipeline depth.
        constraints: asked for the masks of steps.
        vocab_size: valid token ids are below it.
        stream_interval: as in `EngineConfig`.
        ledger: the planner's observer.
        max_queued_tokens: as in `EngineConfig`.
        quotas: of the shares.
    """

    name = "scheduler"

    def __init__(
        self,
        inbox: Channel[ToScheduler],
        planner: Planner,
        runner: Sender[ToModelRunner],
        constraints: Sender[ToConstraints],
        vocab_size: int,
        stream_interval: float | None,
        ledger: StepLedger,
        max_queued_tokens: int | None,
        quotas: Quotas,
    ) -> None:
        self._inbox = inbox
        self._planner = planner
        self._runner = runner
        self._masks = MaskRequests(planner, constraints, runner)
        self._vocab_size = vocab_size
        self._stream_interval = stream_interval
        self._outbox: list[tuple[Sender[ToRequest], ToRequest]] = []
        self._deliveries = Deliveries()
        self._delivered_at = 0.0  # by the loop's clock
        self._delivery_due: asyncio.TimerHandle | None = None
        self._ledger = ledger
        self._max_queued_tokens = max_queued_tokens
        self._quotas = quotas

    async def run(self) -> None:
        """Apply messages and plan steps, until cancelled."""
        while True:
            for message in await self._inbox.drain():
                self._apply(message)
            while (step := self._planner.plan()) is not None:
                self._runner.tell(step)
                self._masks.add(step)
            self._masks.ask()
            if self._deliveries:
                self._deliver()
            for reply_to, answer in self._outbox:
                reply_to.tell(answer)
            self._outbox.clear()
            self._check_that_some_succeed()

    def _deliver(self) -> None:
        """Let the requests hear of their tokens, or see to it that they do when it is time."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        interval = seconds_between_messages(self._planner.num_running, self._stream_interval)
        early = self._delivered_at + interval - now
        if early <= 0:
            self._delivered_at = now
            self._post(self._deliveries.take_all())
        elif self._delivery_due is None:
            self._delivery_due = loop.call_later(early, self._inbox.sender.tell, DeliveryDue())

    def _post(self, generated: Iterable[tuple[Sequence, Generated]]) -> None:
        self._outbox.extend([(sequence.reply_to, message) for sequence, message in generated])

    def _apply(self, message: ToScheduler) -> None:
        match message:
            case StepDone(number, result, times):
                self._ledger.completed(number, self._planner.chunks(number), times)
                progresses = self._planner.complete(number, result)
                self._ledger.drew(number, progresses)
                for progress in progresses:
                    if progress.failure is not None:
                        logger.error(
                            "request %s failed: %s",
                            progress.sequence.request_id,
                            progress.failure,
                            extra=of_request(progress.sequence.request_id),
                        )
                        self._fail([progress.sequence], StepFailure(progress.failure))
                    elif not self._deliveries.add(progress):
                        self._outbox.append((progress.sequence.reply_to, self._deliveries.take(progress.sequence)))
            case StepFailed(number, error, times):
                logger.error("step %d failed", number, exc_info=error)
                self._ledger.failed(number, self._planner.chunks(number), times, error)
                failure = StepFailure(f"the forward pass that carried this request failed: {type(error).__name__}")
                failure.__cause__ = error
                self._fail(self._planner.fail(number), failure)
            case Submit():
                self._submit(message)
            case Cancel(request_id, index):
                self._planner.cancel(request_id, index)
            case ConstraintFailed(request_id, error):
                self._fail(self._planner.sequences(request_id), error)
            case DeliveryDue():
                self._delivery_due = None

    def _check_that_some_succeed(self) -> None:
        """A device that has failed may show it as an error of every step.

        Raises:
            EngineFailed: too many steps in a row have failed, of too many requests for one of them to be the reason.
        """
        ledger = self._ledger
        if ledger.num_failures_in_a_row >= FATAL_FAILURES and len(ledger.failed_in_a_row) >= FATAL_FAILURES:
            raise EngineFailed(
                f"the last {ledger.num_failures_in_a_row} steps, of {len(ledger.failed_in_a_row)} requests, have all "
                "failed, so the device or the model is broken"
            )

    def _submit(self, submit: Submit) -> None:
        try:
            sequences = [_sequence(submit, index, self._vocab_size) for index in range(submit.sampling.n)]
            num_own_tokens, metered = 0, submit.share.tokens_per_minute is not None
            if metered or self._max_queued_tokens is not None or submit.deadlines is not None:
                outlook = self._planner.outlook(sequences)
                num_own_tokens = outlook.num_own_tokens
                self._quotas.check(submit.share, num_own_tokens)
                check_queue(outlook, self._max_queued_tokens)
                if submit.deadlines is not None:
                    check_deadlines(outlook, submit.deadlines, time.monotonic() - submit.timeline.arrived_at)
            for sequence in sequences:
                self._planner.add(sequence)
            self._quotas.pay(submit.share, sequences, num_own_tokens)
        except LimelightError as error:
            self._refuse(submit, error)
        except Exception as error:  # a bug that one request has met, and others need not meet
            logger.exception(
                "request %s could not be scheduled", submit.request_id, extra=of_request(submit.request_id)
            )
            failure = LimelightError(f"the request could not be scheduled: {type(error).__name__}")
            failure.__cause__ = error
            self._refuse(submit, failure)

    def _refuse(self, submit: Submit, error: LimelightError) -> None:
        self._planner.cancel(submit.request_id)
        self._outbox.append((submit.reply_to, Failed(error)))

    def _fail(self, sequences: Iterable[Sequence], error: LimelightError) -> None:
        """Fail the requests of `sequences`, each once, with all their choices."""
        failed = {sequence.request_id: sequence.reply_to for sequence in sequences}
        self._post(self._deliveries.take_of(failed))
        for request_id, reply_to in failed.items():
            self._planner.cancel(request_id)
            self._outbox.append((reply_to, Failed(error)))


def _sequence(submit: Submit, index: int, vocab_size: int) -> Sequence:
    sampling = submit.sampling
    assert sampling.seed is not None, "the engine seeds every request"
    return Sequence(
        request_id=submit.request_id,
        index=index,
        prompt_token_ids=submit.token_ids,
        sampling=seat_sampling(
            sampling,
            seed=choice_seed(sampling.seed, index),
            stop_token_ids=submit.stop_token_ids,
            num_prompt_tokens=len(submit.token_ids),
            vocab_size=vocab_size,
            masked=submit.constraints is not None,
        ),
        stop_token_ids=submit.stop_token_ids,
        max_tokens=0 if submit.pooling else sampling.max_tokens,
        priority=submit.priority,
        cache_salt=submit.cache_salt,
        adapter=submit.adapter,
        owner=submit.owner,
        share=submit.share.name,
        weight=submit.share.weight,
        reply_to=submit.reply_to,
        readout=_readout(submit, index),
        reads_cache=not sampling.skip_reading_prefix_cache,
        constraint=None if submit.constraints is None else submit.constraints.begin(),
        timeline=submit.timeline.choices[index],
    )


def _readout(submit: Submit, index: int) -> PromptReadout | None:
    """What choice `index` tells of the prompt: the first one tells it for all."""
    num_logprobs = submit.sampling.prompt_logprobs if index == 0 else None
    draws = submit.pooling is None and submit.sampling.max_tokens != 0
    if draws and num_logprobs is None:
        return None
    return PromptReadout(len(submit.token_ids), num_logprobs, submit.pooling, draws)
