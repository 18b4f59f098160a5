"""A client's hold on one live request."""

from collections.abc import Callable

from limelight.actors.event_log import Subscription
from limelight.actors.request import RequestActor
from limelight.actors.scheduling.prompt_progress import PromptProgress as PromptProgress
from limelight.errors import LimelightError, RequestCancelled
from limelight.generation import Delta, Generation, TokenLogprob
from limelight.telemetry.timeline import RequestTimeline


class Stream:
    """Async iterator over what one request generates. Made by `Engine.stream` and its siblings.

    Iterating is safe to cancel: what has not been taken is delivered by the next call. A reader that falls behind gets
    merged deltas; it never slows the engine.
    """

    def __init__(
        self,
        actor: RequestActor,
        subscription: Subscription,
        prompt_progress: Callable[[str], PromptProgress | None],
    ) -> None:
        self._actor = actor
        self._subscription = subscription
        self._prompt_progress = prompt_progress
        self._taken: list[Delta] = []

    @property
    def request_id(self) -> str:
        """The request's id, as given or made at admission."""
        return self._actor.request.request_id

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The encoded prompt; empty until the prompt has been encoded, which comes before the first delta."""
        return self._actor.prompt_token_ids

    @property
    def prompt_text(self) -> str | None:
        """The prompt after the chat template; None for a token-id prompt, or before it has been rendered."""
        return self._actor.prompt_text

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """One entry per prompt token, None for the first; known before the first delta. None unless asked for."""
        return self._actor.prompt_logprobs

    @property
    def prompt_token_offsets(self) -> tuple[tuple[int, int], ...] | None:
        """Start and end of each prompt token in `prompt_text`, in characters; None unless asked for and known."""
        return self._actor.prompt_token_offsets

    @property
    def timeline(self) -> RequestTimeline:
        """When things happened to the request, as far as it has come; only to be read."""
        return self._actor.timeline

    def abort(self, reason: LimelightError | None = None) -> None:
        """End the request now, whoever else reads it; readers meet `reason` (`RequestCancelled` unless given)."""
        self._actor.fail(reason or RequestCancelled(f"request {self.request_id} was cancelled"))

    def prompt_progress(self) -> PromptProgress | None:
        """How far the prompt is at this moment; None until it has been encoded, or if the request has failed.

        From the first token on, and after the end, all of it is done.
        """
        actor = self._actor
        if not actor.has_output:
            return self._prompt_progress(self.request_id)
        usage = actor.usage
        return PromptProgress(
            queue_position=0,
            prompt_tokens=usage.prompt_tokens,
            prompt_tokens_done=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
        )

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Delta:
        """The next delta of any choice.

        Raises:
            LimelightError: the request failed; all earlier deltas have been delivered.
        """
        if not self._taken:
            self._taken = await self.next_deltas()
            if not self._taken:
                raise StopAsyncIteration
        return self._taken.pop(0)

    async def next_deltas(self) -> list[Delta]:
        """Wait for news and take all of it, merged to one delta per choice; empty when the request has finished.

        Raises:
            LimelightError: the request failed; all earlier deltas have been delivered.
        """
        if self._taken:
            taken, self._taken = self._taken, []
            return taken
        return await self._subscription.next_deltas()

    async def result(self) -> Generation:
        """Wait for the end and return the whole generation, whatever has been read before.

        Raises:
            LimelightError: the request failed.
        """
        self._taken = []
        await self._subscription.wait_for_end()
        return Generation(
            request_id=self.request_id,
            prompt=self.prompt_text,
            prompt_token_ids=self.prompt_token_ids,
            outputs=self._actor.log.completions(),
            usage=self._actor.usage,
            prompt_logprobs=self._actor.prompt_logprobs,
            pooled=self._actor.pooled,
            prompt_token_offsets=self.prompt_token_offsets,
        )
