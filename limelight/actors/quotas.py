"""Who may still use how much: the token buckets of shares, and the meters of their requests.

The prompt is paid when a request is let in, as far as no cached page has it, and settled when its first token is there;
each token of the output when it is drawn. So a request costs what its `usage` says. Of a request that ends before its
first token, what was not computed is given back.
"""

from collections.abc import Callable

from limelight.actors.scheduling.in_flight import PlannedChunk
from limelight.actors.scheduling.sequence import Sequence
from limelight.actors.scheduling.token_bucket import TokenBucket
from limelight.errors import ShareExceeded
from limelight.generation import Share
from limelight.quoting import quoted
from limelight.telemetry.statistics import QuotaStanding

FIRST_SWEEP = 1024
"""So many buckets are kept before those that are full, which nobody needs to remember, are looked for."""


class Meter:
    """What one request pays, by all its choices. Told of them as an `Observer` is, with the time.

    Args:
        prepaid: tokens of the prompt that are paid already.
    """

    __slots__ = ("_bucket", "_computed", "_prepaid")

    def __init__(self, bucket: TokenBucket, prepaid: int) -> None:
        self._bucket = bucket
        self._prepaid: int | None = prepaid  # until it is settled
        self._computed = 0

    def drew(self, sequence: Sequence, num_tokens: int, now: float) -> None:
        """Tokens have been drawn for a choice."""
        if self._prepaid is not None and sequence.index == 0:
            num_tokens += sequence.num_prompt_tokens - sequence.cached_tokens - self._prepaid
            self._prepaid = None
        self._bucket.take(num_tokens, now)

    def unseats(self, sequence: Sequence) -> None:
        """A choice is about to lose its pages."""
        if sequence.index == 0:
            self._computed = max(self._computed, _computed(sequence))

    def ended(self, sequence: Sequence, now: float) -> None:
        """A choice is about to be forgotten; its last tokens may still be told."""
        self._bucket.num_holders -= 1
        if self._prepaid is not None and sequence.index == 0:
            self.unseats(sequence)
            self._bucket.take(self._computed - self._prepaid, now)
            self._prepaid = None

    def lost(self, chunk: PlannedChunk, now: float) -> None:
        """The step with this chunk has failed, and its request is about to end: nothing was computed."""
        sequence = chunk.sequence
        if self._prepaid is not None and sequence.index == 0 and not chunk.stale:
            self._bucket.take(-min(chunk.num_tokens, _computed(sequence)), now)


class Quotas:
    """The buckets of all shares that have a quota, made when they are first used. Forgets those that are full.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self._sweep_at = FIRST_SWEEP

    def check(self, share: Share, num_tokens: int) -> None:
        """Whether a prompt of `num_tokens` tokens that are not cached may be paid now.

        Raises:
            ShareExceeded: the bucket has less than that and is not full; says when it will have.
        """
        bucket = self._bucket(share)
        if bucket is None:
            return
        now = self._clock()
        if wait := bucket.seconds_until(num_tokens, now):
            raise ShareExceeded(
                f"{quoted(share.payer or share.name)} may use {share.tokens_per_minute:g} tokens per minute and "
                f"{bucket.size:g} at once: {bucket.level(now):.0f} are left, and this prompt has {num_tokens} that are "
                f"not cached; try again in {wait:.1f} seconds",
                retry_after_seconds=wait,
            )

    def pay(self, share: Share, sequences: list[Sequence], num_tokens: int) -> None:
        """Let the choices of a request draw on the quota of `share`, and take the prompt's `num_tokens` at once."""
        bucket = self._bucket(share)
        if bucket is None:
            return
        bucket.take(num_tokens, self._clock())
        bucket.num_holders += len(sequences)
        meter = Meter(bucket, num_tokens)
        for sequence in sequences:
            sequence.meter = meter

    def standing(self, share: Share) -> QuotaStanding | None:
        """What is left of the quota of `share`; None: it has none."""
        bucket = self._bucket(share)
        if bucket is None:
            return None
        now = self._clock()
        return QuotaStanding(
            limit_tokens=bucket.size,
            remaining_tokens=bucket.level(now),
            reset_seconds=bucket.seconds_until(bucket.size, now),
        )

    def _bucket(self, share: Share) -> TokenBucket | None:
        if share.tokens_per_minute is None:
            return None
        name, now = share.payer or share.name, self._clock()
        per_second = share.tokens_per_minute / 60
        size = share.tokens_per_minute if share.burst_tokens is None else share.burst_tokens
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._forget_full(now)
            bucket = self._buckets[name] = TokenBucket(per_second, size, now)
        else:
            bucket.set_limits(per_second, size, now)
        return bucket

    def _forget_full(self, now: float) -> None:
        self._buckets = {
            name: bucket
            for name, bucket in self._buckets.items()
            if bucket.num_holders or bucket.level(now) < bucket.size
        }
        self._sweep_at = max(FIRST_SWEEP, 2 * len(self._buckets))


def _computed(sequence: Sequence) -> int:
    """Tokens of its prompt that steps have computed, or are computing."""
    return max(0, min(sequence.num_computed_tokens, sequence.num_prompt_tokens) - sequence.cached_tokens)
