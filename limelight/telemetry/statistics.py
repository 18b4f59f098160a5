"""What an engine counts, as plain numbers. Reading them costs nothing on the hot path."""

import msgspec


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that requests can name.

    Attributes:
        path: the folder or hub id that it was loaded from.
        rank: the largest one of its matrices.
        num_bytes: memory that it takes.
        num_requests: live requests that use it.
    """

    name: str
    path: str
    rank: int
    num_bytes: int
    num_requests: int


class ShareStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A share that has live sequences.

    Attributes:
        num_live, num_running: its sequences, and those that have a seat.
        lag_tokens: virtual tokens (as decisions/0017 counts them) by which it is behind the one served most.
    """

    name: str
    weight: float
    num_live: int
    num_running: int
    lag_tokens: float


class QuotaStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a quota is left at this moment.

    Attributes:
        limit_tokens: what may be used at once after a rest.
        remaining_tokens: below 0: what running requests have used beyond it.
        reset_seconds: until all of it is there again, if nothing is used meanwhile.
    """

    limit_tokens: float
    remaining_tokens: float
    reset_seconds: float


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """State and totals of a running engine, true at the moment of the call.

    Attributes:
        num_requests: live requests; a request with n choices counts once here and n times in the next two.
        num_running, num_waiting: sequences with and without a seat.
        num_free_pages: pages that no sequence holds, cached ones included.
        num_cached_pages: pages in the prefix cache, held or not.
        num_steps, step_seconds: steps that are through, failed ones included, and their time on the runner's threads.
        prefix_queries_tokens, prefix_hits_tokens: prompt tokens that have run, and those that came from the cache.
        adapters: the LoRA adapters that requests can name.
        num_draft_tokens, num_accepted_tokens: tokens guessed by prompt lookup, and those that turned out right.
        shares: those that have live sequences.
    """

    num_requests: int
    num_running: int
    num_waiting: int
    num_seats: int
    num_free_seats: int
    num_pages: int
    num_free_pages: int
    num_cached_pages: int
    num_preemptions: int
    num_steps: int
    step_seconds: float
    prefix_queries_tokens: int
    prefix_hits_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    adapters: tuple[LoadedAdapter, ...]
    shares: tuple[ShareStanding, ...] = ()
