"""What exists only while an engine is up: the actors, wired to each other, and what is asked of them all together."""

import asyncio
from dataclasses import dataclass

from limelight.actors.adapters import Adapters
from limelight.actors.background import BackgroundTasks
from limelight.actors.channel import Sender
from limelight.actors.live_requests import LiveRequests
from limelight.actors.messages import ToConstraints, ToScheduler, ToTokenizer
from limelight.actors.quotas import Quotas
from limelight.actors.records import Records
from limelight.actors.request import RequestActor
from limelight.actors.scheduler import SchedulerActor
from limelight.actors.scheduling.observer import Observer
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.prompt_lookup import Speculation
from limelight.actors.scheduling.shares import Account
from limelight.actors.scheduling.step_costs import StepCosts
from limelight.actors.step_ledger import StepLedger
from limelight.actors.tokenizer import TokenizerActor
from limelight.admission import check_names, check_readable, check_token_ids, check_types, with_seed
from limelight.config import MAX_PIPELINE_DEPTH, EngineConfig
from limelight.generation import GenerationRequest
from limelight.models.loaded_model import LoadedModel
from limelight.telemetry.statistics import EngineStatistics, ShareStanding
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import RequestTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningParts:
    """The parts of a running engine; all belong to the event loop `loop`."""

    loop: asyncio.AbstractEventLoop
    model: LoadedModel
    planner: Planner
    scheduler: SchedulerActor
    tokenizer: TokenizerActor
    adapters: Adapters
    to_scheduler: Sender[ToScheduler]
    to_tokenizer: Sender[ToTokenizer]
    to_constraints: Sender[ToConstraints]
    live: LiveRequests
    quotas: Quotas
    background: BackgroundTasks
    ledger: StepLedger
    records: Records
    telemetry: Telemetry

    def admit(self, request: GenerationRequest, timeline: RequestTimeline) -> RequestActor:
        """Let a request live, or refuse it.

        Raises:
            InvalidRequest: a value can never work with this model, or the id is in use.
            ModelNotFound: no adapter of this name is loaded.
            Overloaded: too many live requests; `ShareExceeded`: of this owner.
        """
        check_names(request)
        self.live.check(request)
        check_types(request)
        check_token_ids(request, self.model.capacity.vocab_size)
        check_readable(request, self.model.unreadable)
        self.records.check(request)
        request = with_seed(request)
        actor = RequestActor(request, self.model, self.to_tokenizer, self.to_constraints, self.to_scheduler, timeline)
        # What only the end of a live request gives back is taken last.
        if request.adapter is not None:
            actor.adapter = self.adapters.hold(request.adapter)
        actor.recorder = self.records.begin(request)
        self.telemetry.admitted(timeline)
        self.live.add(actor)
        return actor

    def statistics(self) -> EngineStatistics:
        """Counts of requests, seats, pages and steps."""
        planner, capacity = self.planner, self.model.capacity
        return EngineStatistics(
            num_requests=len(self.live),
            num_running=planner.num_running,
            num_waiting=planner.num_waiting,
            num_seats=capacity.num_seats,
            num_free_seats=planner.num_free_seats,
            num_pages=capacity.num_pages,
            num_free_pages=planner.num_free_pages,
            num_cached_pages=planner.num_cached_pages,
            num_preemptions=planner.num_preemptions,
            num_steps=self.ledger.num_steps,
            step_seconds=self.telemetry.step_seconds,
            prefix_queries_tokens=planner.prefix_queries_tokens,
            prefix_hits_tokens=planner.prefix_hits_tokens,
            num_draft_tokens=planner.num_draft_tokens,
            num_accepted_tokens=planner.num_accepted_tokens,
            adapters=self.adapters.described(),
            shares=_standings(planner.accounts),
        )


def _standings(accounts: list[Account]) -> tuple[ShareStanding, ...]:
    most = max((account.served for account in accounts), default=0.0)
    return tuple(
        ShareStanding(
            name=account.name,
            weight=account.weight,
            num_live=account.num_live,
            num_running=account.num_seats,
            lag_tokens=most - account.served,
        )
        for account in accounts
    )


def make_planner(
    config: EngineConfig, model: LoadedModel, observer: Observer, step_costs: StepCosts | None = None
) -> Planner:
    """The planner that `config` asks for."""
    speculation = None
    if config.num_speculative_tokens:
        speculation = Speculation(
            num_tokens=config.num_speculative_tokens,
            longest=config.prompt_lookup_max,
            shortest=config.prompt_lookup_min,
        )
    return Planner(
        model.capacity,
        prefix_caching=config.enable_prefix_caching,
        pipeline_depth=config.pipeline_depth or (MAX_PIPELINE_DEPTH if model.overlaps_steps else 1),
        speculation=speculation,
        observer=observer,
        step_costs=step_costs,
        target_step_seconds=None if config.target_itl_ms is None else config.target_itl_ms / 1000,
    )
