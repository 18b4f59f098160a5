"""One choice of a request as the scheduler sees it: tokens, progress, and what it holds while it runs.

Owned by one planner and changed by nobody else; it never crosses to another actor.
"""

import dataclasses
from typing import Any

from limelight.actors.scheduling.prefix_cache import PageChain
from limelight.actors.scheduling.prompt_lookup import PromptLookup
from limelight.actors.scheduling.prompt_readout import PromptReadout
from limelight.generation import MIN_TEMPERATURE, SamplingParams
from limelight.step import SeatSampling

Rank = tuple[int, int, int]
"""Order of service, lower first: (0 if promoted by ageing else 1, priority, arrival). Unique per sequence."""


def seat_sampling(
    params: SamplingParams,
    *,
    seed: int,
    stop_token_ids: frozenset[int],
    num_prompt_tokens: int,
    vocab_size: int,
    masked: bool = False,
) -> SeatSampling:
    """The device's part of `params`, with greedy decoding written as temperature 0 and no cuts.

    Args:
        seed: of this choice.
        stop_token_ids: every id that ends the choice; blocked until `min_tokens` are out. Ids outside the vocabulary
            can't be drawn and are left out.
        masked: masks say what may be drawn, `min_tokens` included.
    """
    blocked: tuple[int, ...] = ()
    if params.min_tokens and not masked:
        blocked = tuple(sorted(id_ for id_ in stop_token_ids if id_ < vocab_size))
    return SeatSampling(
        temperature=0.0 if params.greedy else max(params.temperature, MIN_TEMPERATURE),
        top_p=1.0 if params.greedy else params.top_p,
        top_k=0 if params.greedy else max(params.top_k, 0),
        min_p=0.0 if params.greedy else params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=seed,
        num_logprobs=params.logprobs or 0 if params.wants_logprobs else None,
        logprob_token_ids=tuple(params.logprob_token_ids or ()),
        logit_bias=params.logit_bias,
        blocked_token_ids=blocked,
        blocked_below_position=num_prompt_tokens + params.min_tokens if blocked else 0,
    )


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Tokens of one choice, and how far they are computed.

    A sequence *runs* while it has a seat and *waits* otherwise; a waiting one holds no page. It is added once, may be
    preempted and resumed any number of times, and ends once.

    Attributes:
        request_id, index: its name; `index` is the choice's.
        prompt_token_ids: at least one.
        sampling: see `seat_sampling`.
        stop_token_ids: the first drawn one of these ends the sequence.
        max_tokens: output limit, or None; clamped to the rest of the context and of the whole KV pool. 0: nothing is
            drawn, and the sequence ends with its prompt; it then has a `readout`.
        priority: lower is served earlier.
        adapter: id of the low-rank adapter it runs with, or None; its pages are shared within that adapter only.
        share, weight: whose turn it takes, and how many turns that one has; see `shares.py`.
        reply_to: opaque to the planner.
        readout: what is to be told of the prompt's rows, until it has been; None: nothing.
        reads_cache: whether it takes pages from the prefix cache; it offers its own in any case.
        meter: counts what it costs, opaque as well; None: nobody does.
        constraint: what is asked which tokens may be drawn, opaque as well; None: all.
        timeline: where an `Observer` writes down what happens to it, opaque as well.
        token_ids: prompt and known output; only ever appended to.
        num_pending_tokens: being drawn by steps in flight, not known yet.
        num_computed_tokens: leading tokens whose keys and values are in `pages`, or will be when the steps in flight
            are through.
        pages: page table, `ceil(num_computed_tokens / page_size)` entries, and more after wrong guesses. Replaced,
            never cleared, when given up, so that a step in flight can keep the list.
        num_sent_pages: leading entries of `pages` that the seat's own table has.
        num_registered_pages: leading entries of `pages` that have been offered to the prefix cache.
        drew_in_seat: whether the last token was drawn for this seat, so that the device can read it there.
        epoch: rises when the results of steps in flight must no longer count.
        max_length: number of tokens, prompt included, at which the sequence ends with `length`.
        limit_details: `finish_details` for that end.
        num_added_at: steps planned before it was added.
        was_scheduled: whether it has ever run.
        num_expected_tokens: to be computed before its first token, as far as was known when it came; those of a prompt
            that another choice computes are not.
        cached_tokens: prompt tokens taken from the prefix cache when it first ran.
        lookup: guesses its next tokens; None: nothing is guessed.
        is_passed_over: whether it waits because it was the turn of another share.
        account: of its share, an `Account`, from when it is added.
        num_followed_tokens: leading tokens that `constraint` knows, the prompt included.
    """

    request_id: str
    index: int = 0
    prompt_token_ids: tuple[int, ...]
    sampling: SeatSampling
    stop_token_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    adapter: int | None = None
    owner: str = "anonymous"
    share: str = "anonymous"
    weight: float = 1.0
    reply_to: Any = None
    readout: PromptReadout | None = None
    reads_cache: bool = True
    constraint: Any = None
    timeline: Any = None
    meter: Any = None

    token_ids: list[int] = dataclasses.field(init=False)
    num_pending_tokens: int = dataclasses.field(init=False, default=0)
    num_computed_tokens: int = dataclasses.field(init=False, default=0)
    pages: list[int] = dataclasses.field(init=False, default_factory=list)
    num_sent_pages: int = dataclasses.field(init=False, default=0)
    num_registered_pages: int = dataclasses.field(init=False, default=0)
    seat: int | None = dataclasses.field(init=False, default=None)
    drew_in_seat: bool = dataclasses.field(init=False, default=False)
    chain: PageChain = dataclasses.field(init=False)
    epoch: int = dataclasses.field(init=False, default=0)
    rank: Rank = dataclasses.field(init=False, default=(1, 0, 0))
    max_length: int = dataclasses.field(init=False, default=0)
    limit_details: str | None = dataclasses.field(init=False, default=None)
    num_added_at: int = dataclasses.field(init=False, default=0)
    was_scheduled: bool = dataclasses.field(init=False, default=False)
    num_expected_tokens: int = dataclasses.field(init=False)
    cached_tokens: int = dataclasses.field(init=False, default=0)
    lookup: PromptLookup | None = dataclasses.field(init=False, default=None)
    is_passed_over: bool = dataclasses.field(init=False, default=False)
    account: Any = dataclasses.field(init=False, default=None)
    num_followed_tokens: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.num_followed_tokens = self.num_expected_tokens = len(self.prompt_token_ids)
        self.token_ids = list(self.prompt_token_ids)
        self.chain = PageChain(self.cache_salt, self.adapter)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def draws(self) -> bool:
        """Whether any token is drawn."""
        return self.max_tokens != 0

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return len(self.token_ids)

    @property
    def arrival(self) -> int:
        """Position in the order of arrival; unique."""
        return self.rank[2]

    @property
    def num_wanted_tokens(self) -> int:
        """Tokens that the next chunk could compute: 1 is a decode, 0 means that nothing is left to plan.

        The token that reaches `max_length` is drawn but never computed. A sequence whose tokens are guessed waits for
        those being drawn: guesses go on from known tokens.
        """
        if self.lookup is not None and self.num_pending_tokens:
            return 0
        total = len(self.token_ids) + self.num_pending_tokens
        return 0 if total >= self.max_length else total - self.num_computed_tokens
