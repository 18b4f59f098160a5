"""The request actor: one generation from prompt to last token. Read this first.

It owns the request's life: it asks the tokenizer for token ids, submits them to the scheduler, turns drawn tokens into
text and writes an event log. Clients subscribe to the log; when the last one leaves, the request ends.
"""

import logging
import time

import anyio
import msgspec

from limelight.actors.channel import Channel, Sender
from limelight.actors.choice import Choice
from limelight.actors.deadlines import DeadlineWatch
from limelight.actors.event_log import EventLog
from limelight.actors.messages import (
    Cancel,
    Compile,
    Compiled,
    Encode,
    Encoded,
    Failed,
    Generated,
    Submit,
    ToConstraints,
    ToRequest,
    ToScheduler,
    ToTokenizer,
)
from limelight.actors.pacing import Pacer
from limelight.actors.recorder import RequestRecorder
from limelight.actors.token_logprobs import prompt_logprobs
from limelight.embeddings import pooled_states
from limelight.errors import ContextLengthExceeded, DeadlineExceeded, LimelightError, RequestCancelled
from limelight.generation import ChatPrompt, Delta, GenerationRequest, Share, TokenLogprob, Usage
from limelight.models.constraints.compiling import needs_constraints
from limelight.models.constraints.constraint import Constraints
from limelight.models.loaded_model import LoadedModel
from limelight.parsing.reasoning import Opening, ReasoningSplitter, opening
from limelight.telemetry.log_fields import of_timeline, without_message
from limelight.telemetry.timeline import RequestTimeline

logger = logging.getLogger(__name__)

NUM_TOKENS_OF_MARKS = 32
"""So many tokens at the end of a prompt hold any mark of reasoning and the white space behind it."""


class RequestActor:
    """One live request.

    Args:
        request: with `sampling.seed` set.
        model: whose vocabulary, limits and end-of-sequence tokens apply.
        timeline: where it writes down what happens to it.

    Attributes:
        log: what clients read.
        adapter: id of the loaded adapter that `request.adapter` names, set before it runs; None: it names none.
        recorder: told of its tokens, set before it runs; None: it is not recorded.
        timeline: as given.
        prompt_logprobs, pooled: what was asked for of the prompt, before the first delta; None unless asked for.
        prompt_token_ids, prompt_text, prompt_token_offsets: known once the prompt is encoded; the last one (start and
            end of its tokens in its text) only if it was asked for.
    """

    def __init__(
        self,
        request: GenerationRequest,
        model: LoadedModel,
        tokenizer: Sender[ToTokenizer],
        compiler: Sender[ToConstraints],
        scheduler: Sender[ToScheduler],
        timeline: RequestTimeline,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.log = EventLog(sampling.n, abandoned=self.cancel)
        self.prompt_token_ids: tuple[int, ...] = ()
        self.prompt_text: str | None = None
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        self.pooled: tuple[float, ...] | None = None
        self.prompt_token_offsets: tuple[tuple[int, int], ...] | None = None
        self._model = model
        self._tokenizer = tokenizer
        self._compiler = compiler
        self._scheduler = scheduler
        self.timeline = timeline
        self.adapter: int | None = None
        self.recorder: RequestRecorder | None = None
        # At most one message per token and choice, one answer of each who is asked, and one `Failed` of the scheduler.
        capacity = sampling.n * model.capacity.max_model_len + 3
        self._inbox: Channel[ToRequest] = Channel(f"request {request.request_id}", capacity)
        self._choices = [Choice(index, sampling, model.vocabulary) for index in range(sampling.n)]
        interval = sampling.stream_interval
        self._pacers = [Pacer(index, interval) for index in range(sampling.n)] if interval else []
        self._cached_tokens: int | None = None
        self._num_drafts = self._num_accepted = 0
        self._early: list[Generated] = []  # what other choices drew before the prompt was scored
        self._encoded: Encoded | None = None
        self._constraints: Constraints | None = None
        self._scope = anyio.CancelScope()
        self._submitted = False

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            cached_tokens=self._cached_tokens or 0,
            reasoning_tokens=sum(choice.num_reasoning_tokens for choice in self._choices),
            accepted_prediction_tokens=self._num_accepted,
            rejected_prediction_tokens=self._num_drafts - self._num_accepted,
        )

    @property
    def has_output(self) -> bool:
        """Whether a token has been drawn."""
        return self._cached_tokens is not None

    @property
    def _prompt_field(self) -> str:
        return "messages" if isinstance(self.request.prompt, ChatPrompt) else "prompt"

    async def run(self) -> None:
        """Live until the last choice has finished, an error, or `cancel`. Always leaves an ended log."""
        limits, watch = self.request.deadlines, None
        with self._scope:
            try:
                if limits is not None:
                    watch = DeadlineWatch(limits, self.timeline, lambda: self.has_output, self._expire)
                await self._generate()
            except Exception as error:  # a bug in this request's own text handling ends this request only
                logger.exception(
                    "request %s failed",
                    self.request.request_id,
                    exc_info=without_message(error),
                    extra=of_timeline(self.timeline),
                )
                failure = LimelightError(f"the request failed: {type(error).__name__}")
                failure.__cause__ = error
                self.log.end(failure)
            finally:
                if watch is not None:
                    watch.close()
                self._inbox.close()
                if self._submitted:
                    self._scheduler.tell(Cancel(self.request.request_id))  # ignored if everything has finished
                self.log.end(RequestCancelled(f"request {self.request.request_id} was cancelled"))

    def cancel(self) -> None:
        """End the request now; pages and seats come back with the scheduler's next turn. Idempotent.

        Whatever else may end it before its task is next run, such as a stop of the engine, comes too late.
        """
        self.log.end(RequestCancelled(f"request {self.request.request_id} was cancelled"))
        self._scope.cancel()

    def observe_end(self) -> None:
        """Write down what is known only at the end."""
        timeline, usage = self.timeline, self.usage
        timeline.output_tokens = usage.completion_tokens
        timeline.reasoning_tokens = usage.reasoning_tokens
        if self.log.error is None:
            timeline.finish_reasons = tuple(completion.finish_reason for completion in self.log.completions())

    def fail(self, error: LimelightError) -> None:
        """Tell every subscriber at once, then end."""
        self.log.end(error)
        self.cancel()

    def _expire(self, limit: str, error: DeadlineExceeded) -> None:
        """A limit of time has run out: end with what there is, or fail."""
        if self.log.ended:
            return
        self.timeline.deadline = limit
        if not self.has_output:
            self.fail(error)
            return
        for choice in self._choices:
            if not choice.finished:
                self._put(choice.cut("deadline"))
        self._scope.cancel()  # seats and pages come back as of any request that ends here

    async def _generate(self) -> None:
        self._ask()
        while not self.log.ended:
            for message in await self._inbox.drain():
                match message:
                    case Encoded() | Compiled():
                        self._prepare(message)
                    case Generated():
                        for ready in await self._after_scores(message):
                            began_at = time.monotonic()
                            self._advance(ready)
                            self.timeline.detokenize_seconds += time.monotonic() - began_at
                    case Failed(ContextLengthExceeded(message=refusal)):
                        self.log.end(ContextLengthExceeded(refusal, param=self._prompt_field))
                    case Failed(error):
                        self.log.end(error)

    def _ask(self) -> None:
        """For the prompt's tokens and, beside that, for what the output may be."""
        request = self.request
        self._tokenizer.tell(
            Encode(
                request.request_id,
                request.prompt,
                self._inbox.sender,
                truncation=request.truncation,
                num_output_tokens=request.sampling.max_tokens,
                with_offsets=request.return_token_offsets,
            )
        )
        if needs_constraints(request.sampling):
            self._compiler.tell(
                Compile(
                    request_id=request.request_id,
                    sampling=request.sampling,
                    marks=request.reasoning,
                    reply_to=self._inbox.sender,
                )
            )

    def _prepare(self, message: Encoded | Compiled) -> None:
        """One of the answers; the last of them lets the request be submitted."""
        if isinstance(message, Encoded):
            self._encoded = message
            self.timeline.encoded_at = time.monotonic()
            self.timeline.encode_seconds = message.seconds
            self.timeline.prompt_tokens = len(message.token_ids)
        else:
            self._constraints = message.constraints
            self.timeline.compiled_at = time.monotonic()
        is_compiled = self._constraints is not None or not needs_constraints(self.request.sampling)
        if self._encoded is not None and is_compiled and not self.log.ended:
            self._submit(self._encoded, self._constraints)

    def _submit(self, encoded: Encoded, constraints: Constraints | None) -> None:
        self.prompt_token_ids = encoded.token_ids
        self.prompt_text = encoded.text
        self.prompt_token_offsets = encoded.offsets
        begins = self._expect_reasoning()
        if constraints is not None:
            constraints = msgspec.structs.replace(constraints, begins=begins)
        request, sampling = self.request, self.request.sampling
        stop_token_ids = frozenset(sampling.stop_token_ids or ())
        if not sampling.ignore_eos:
            stop_token_ids |= self._model.eos_token_ids
        if self.recorder is not None:
            self.recorder.submitted(encoded.token_ids, stop_token_ids)
            if sampling.logprobs is None:  # of the drawn tokens alone: they tell how near another one was
                sampling = msgspec.structs.replace(sampling, logprobs=0)
        self._submitted = True
        self.timeline.submit(time.monotonic())
        self._scheduler.tell(
            Submit(
                request_id=request.request_id,
                token_ids=encoded.token_ids,
                sampling=sampling,
                stop_token_ids=stop_token_ids,
                priority=request.priority,
                cache_salt=request.cache_salt,
                adapter=self.adapter,
                owner=request.owner,
                share=request.share or Share(name=request.owner),
                timeline=self.timeline,
                reply_to=self._inbox.sender,
                pooling=request.pooling,
                constraints=constraints,
                deadlines=request.deadlines,
            )
        )

    def _expect_reasoning(self) -> Opening:
        """Tell the choices how reasoning is marked, and whether the prompt has opened or closed one already."""
        marks = self.request.reasoning
        if marks is None:
            return Opening.TEXT
        prompt = self.prompt_text
        if prompt is None:
            end = self.prompt_token_ids[-NUM_TOKENS_OF_MARKS:]
            prompt = self._model.vocabulary.decode(end, skip_special_tokens=False)
        begins = opening(prompt, marks)
        for choice in self._choices:
            choice.expect_reasoning(ReasoningSplitter(marks, begins))
        return begins

    async def _after_scores(self, generated: Generated) -> list[Generated]:
        """The messages that may be acted on now: those of other choices wait for the scores, which come with the first
        of choice 0.
        """
        if generated.hidden is not None and self.request.pooling is not None:
            self.pooled = pooled_states(generated.hidden, self.request.pooling, len(self.prompt_token_ids))
        if generated.scores is not None:
            entries = prompt_logprobs(self._model.vocabulary, self.prompt_token_ids, generated.scores)
            self.prompt_logprobs = tuple([entry async for entry in entries])
        if self.request.sampling.prompt_logprobs is None:
            return [generated]
        self._early.append(generated)
        if self.prompt_logprobs is None:
            return []
        ready, self._early = self._early, []
        return ready

    def _advance(self, generated: Generated) -> None:
        choice = self._choices[generated.index]
        if choice.finished or self.log.ended:
            return  # drawn before the scheduler heard of the stop string, or of the request's end
        if self._cached_tokens is None:
            self._cached_tokens = generated.cached_tokens
        num_before = choice.num_tokens
        delta = choice.advance(generated)
        self.timeline.output_tokens += choice.num_tokens - num_before
        if self.recorder is not None:
            self.recorder.drew(generated, choice.num_tokens - num_before)
        self._num_drafts += generated.num_drafts
        # A stop string may end the choice before the last guess that was right: what lies behind it is not generated.
        self._num_accepted += min(generated.num_accepted, choice.num_tokens - num_before)
        if delta.finish_reason is not None and generated.finish_reason is None:
            self._scheduler.tell(Cancel(self.request.request_id, generated.index))
        self._put(delta)

    def _put(self, delta: Delta) -> None:
        """What a choice has become, for the readers; the last delta of all ends the request."""
        ends = all(choice.finished for choice in self._choices)
        if ends:
            delta = msgspec.structs.replace(delta, usage=self.usage)
        due = self._pacers[delta.index].add(delta) if self._pacers else delta
        if due is not None and (due.text or due.reasoning or due.token_ids or due.finish_reason is not None):
            self.log.append(due)
            if self.timeline.first_chunk_at is None:
                self.timeline.first_chunk_at = time.monotonic()
        if ends:
            self.log.end()
