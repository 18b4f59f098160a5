"""Requests seen from outside: in every phase, in every state of the engine, and what each took of it."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.actors import step_ledger
from limelight.actors.messages import StepTimes
from limelight.actors.scheduling.planner import Planner
from limelight.actors.scheduling.sequence import Sequence
from limelight.config import EngineConfig
from limelight.engine import Engine
from limelight.errors import EngineNotRunning, InvalidRequest, LimelightError, Overloaded, RequestCancelled
from limelight.generation import FinishReason, GenerationRequest, SamplingParams, TextPrompt
from limelight.step import Capacity, Sampled, SeatSampling, Step
from limelight.telemetry.counters import EngineCounters
from limelight.telemetry.genai_metrics import GenAIMetrics
from limelight.telemetry.request_view import RequestView
from limelight.telemetry.telemetry import Telemetry
from limelight.telemetry.timeline import ChoiceTimeline, Delivery, Ending, Phase
from limelight.telemetry.tracing import Tracing
from limelight.testing import babble, scripted_engine, scripted_model
from limelight.testing.executor import ScriptedExecutor

pytestmark = pytest.mark.anyio


class Gate:
    """Holds steps back, as many as are not let through."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def __call__(self, step: Step) -> None:
        assert self._permits.acquire(timeout=60)

    def let_through(self, number: int = 1) -> None:
        self._permits.release(number)


def request(text: str = "hello", **changes: object) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=20)
    made = GenerationRequest(request_id=f"request of {text}", prompt=TextPrompt(text), sampling=sampling)
    return msgspec.structs.replace(made, **changes)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.001)


async def until_idle(engine: Engine) -> None:
    """No request is live, and the steps that carried aborted ones are through."""
    planner = engine._system.parts.planner
    await until(lambda: not engine.statistics().num_requests and not planner.has_work)


def only(engine: Engine, request_id: str) -> RequestView:
    view = engine.request_view(request_id)
    assert view is not None
    return view


# ---- phases


async def test_a_request_is_seen_from_the_queue_to_its_end() -> None:
    gate = Gate()
    engine = scripted_engine(before_step=gate, max_num_seqs=1, max_num_batched_tokens=16, page_size=8, pipeline_depth=1)
    first = request("a" * 40, http_request_id="from outside", owner="ada")
    async with engine, engine.open(first) as stream, engine.open(request("second")), engine.open(request("third")):
        stream.timeline.delivery = Delivery(num_writes=2, num_bytes=9, seconds=0.5, longest_seconds=0.4)
        assert [view.phase for view in engine.requests()] == [Phase.TOKENIZING] * 3
        assert [view.prompt_tokens for view in engine.requests()] == [0, 0, 0]

        await until(lambda: engine.statistics().num_waiting == 2 and engine.statistics().num_running == 1)
        running, *waiting = engine.requests()
        assert (running.phase, running.queue_position, running.prompt_tokens) == (Phase.PREFILL, None, 41)
        assert (running.prompt_tokens_done, running.pages, running.step_seconds) == (0, 2, 0.0)
        assert [(view.phase, view.queue_position, view.pages) for view in waiting] == [
            (Phase.QUEUED, 1, 0),
            (Phase.QUEUED, 2, 0),
        ]

        gate.let_through()
        await until(lambda: only(engine, first.request_id).prompt_tokens_done == 16)
        running = only(engine, first.request_id)
        assert (running.phase, running.pages) == (Phase.PREFILL, 4)
        assert running.step_share == 1.0
        assert running.timings.prefill is None

        gate.let_through(4)
        await until(lambda: only(engine, first.request_id).output_tokens == 3)
        running = only(engine, first.request_id)
        assert (running.phase, running.prompt_tokens_done, running.ending) == (Phase.DECODE, 41, None)
        assert running.timings.time_to_first_token is not None
        assert (running.http_request_id, running.owner, running.operation) == ("from outside", "ada", "text_completion")
        assert running.delivery is not None
        assert (running.delivery.num_writes, running.delivery.waiting_seconds) == (2, 0.0)
        stream.timeline.delivery.begin()
        delivery = only(engine, first.request_id).delivery
        assert delivery is not None
        assert delivery.waiting_seconds > 0

        gate.let_through(1000)
        await stream.result()
        await until(lambda: only(engine, first.request_id).phase is Phase.ENDED)
        ended = only(engine, first.request_id)
    assert (ended.ending, ended.error_code, ended.output_tokens) == (Ending.COMPLETED, None, 20)
    assert ended.finish_reasons == (FinishReason.LENGTH,)
    assert (ended.pages, ended.queue_position) == (0, None)
    assert ended.page_seconds > running.page_seconds > 0
    assert ended.timings.total is not None
    assert abs(ended.arrived_at + ended.timings.total - time.time()) < 60


async def test_choices_are_seen_together() -> None:
    async with scripted_engine(page_size=8) as engine:
        await engine.generate("hello", SamplingParams(max_tokens=10, n=3), request_id="three")
        await until_idle(engine)
        view = only(engine, "three")
    assert (view.output_tokens, view.finish_reasons) == (30, (FinishReason.LENGTH,) * 3)
    assert view.step_share == pytest.approx(1.0)


# ---- states of the engine


async def test_there_is_a_view_before_the_start_and_after_the_stop() -> None:
    engine = scripted_engine()
    assert engine.requests(recent=10) == ()
    assert not engine.abort("nobody")
    with pytest.raises(EngineNotRunning):
        await engine.generate("too early", SamplingParams(), request_id="early")
    async with engine:
        await engine.generate("hello", SamplingParams(max_tokens=3), request_id="whole")
        await until_idle(engine)
        async with engine.stream("hello", SamplingParams(max_tokens=1000), request_id="cut off") as stream:
            await stream.next_deltas()
            await engine.stop()
    assert engine.requests() == ()
    views = engine.requests(recent=10)
    assert [(view.request_id, view.ending, view.error_code, view.pages) for view in views] == [
        ("cut off", Ending.FAILED, "engine_not_running", 0),
        ("whole", Ending.COMPLETED, None, 0),
        ("early", Ending.REJECTED, "engine_not_running", 0),
    ]
    assert views[0].page_seconds > 0
    assert only(engine, "cut off") == views[0], "nothing grows after the end"
    assert not engine.abort("cut off")


async def test_a_failed_engine_still_tells() -> None:
    def fall(step: Step) -> None:
        raise SystemExit

    async with scripted_engine(before_step=fall) as engine:
        with pytest.raises(LimelightError):
            await engine.generate("hello", request_id="last")
        await until(lambda: not engine.telemetry.live)
        assert only(engine, "last").ending is Ending.FAILED
        assert only(engine, "last").error_code == "engine_failed"


async def test_refused_requests_are_remembered_and_the_oldest_are_forgotten() -> None:
    async with scripted_engine(max_num_requests=1, recent_requests=3) as engine:
        async with engine.stream("hello", request_id="running"):
            with pytest.raises(Overloaded):
                await engine.generate("hello", request_id="one too many")
        await until_idle(engine)
        for prompt in ([99999], [99998]):
            with pytest.raises(InvalidRequest):
                await engine.generate(prompt, request_id=str(prompt))
        views = engine.requests(recent=10)
    assert [(view.request_id, view.ending) for view in views] == [
        ("[99998]", Ending.INVALID),
        ("[99999]", Ending.INVALID),
        ("running", Ending.ABORTED),
    ]
    assert engine.request_view("one too many") is None


# ---- abort


@pytest.mark.parametrize("num_steps", [None, 0, 1, 6])
async def test_a_request_is_aborted_in_any_phase(num_steps: int | None) -> None:
    gate = Gate()
    phases = {None: Phase.TOKENIZING, 0: Phase.QUEUED, 1: Phase.PREFILL, 6: Phase.DECODE}
    options = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "pipeline_depth": 1}
    async with scripted_engine(before_step=gate, **options) as engine:
        async with engine.open(request("first")) as first, engine.open(request("a" * 40)) as stream:
            if num_steps is not None:
                if num_steps:
                    first.abort()
                for _ in range(num_steps):
                    gate.let_through()
                await until(lambda: only(engine, stream.request_id).phase is phases[num_steps])
            assert only(engine, stream.request_id).phase is phases[num_steps]
            assert engine.abort(stream.request_id, RequestCancelled("by hand"))
            assert not engine.abort(stream.request_id), "once"
            with pytest.raises(RequestCancelled, match="by hand"):
                await stream.result()
        gate.let_through(1000)
        await until_idle(engine)
        statistics = engine.statistics()
        view = only(engine, stream.request_id)
    assert (view.phase, view.ending, view.error_code, view.pages) == (
        Phase.ENDED,
        Ending.ABORTED,
        "request_cancelled",
        0,
    )
    assert (statistics.num_free_pages, statistics.num_free_seats) == (statistics.num_pages, statistics.num_seats)


# ---- shares


class FailingExecutor(ScriptedExecutor):
    """Takes its time, measured by its own clock, and fails one step in thirty: when submitted, or in the wait."""

    def __init__(self, chance: random.Random, capacity: Capacity) -> None:
        super().__init__(babble, capacity, None, 0.0)
        self._chance = chance
        self.seconds = 0.0

    def submit(self, step: Step):
        began_at = time.monotonic()
        try:
            wait = super().submit(step)
            time.sleep(self._chance.choice((0.0, 0.0005, 0.002)))
            if self._chance.random() < 0.017:
                raise ValueError("failed when submitted")
        finally:
            self.seconds += time.monotonic() - began_at
        return self._fail if self._chance.random() < 0.017 else wait

    def _fail(self):
        raise ValueError("failed while it ran")


def failing_engine(chance: random.Random, executors: list[FailingExecutor], **options: object) -> Engine:
    load_scripted = scripted_model(num_pages=20, max_model_len=120)

    def load(config, report):
        model = load_scripted(config, report)
        executors.append(FailingExecutor(chance, model.capacity))
        return msgspec.structs.replace(model, executor=executors[-1])

    return Engine("scripted", loader=load, **options)


async def impatient(engine: Engine, chance: random.Random, number: int) -> None:
    """One request, read to its end or left before that."""
    sampling = SamplingParams(n=chance.choice((1, 1, 2)), max_tokens=chance.choice((1, 30, 50)), seed=number)
    try:
        async with engine.stream(f"{number}" * chance.choice((3, 15, 30)), sampling) as stream:
            for _ in range(chance.choice((0, 3, 1000, 1000))):
                if not await stream.next_deltas():
                    break
    except LimelightError:
        pass


@pytest.mark.parametrize("depth", [1, 2])
async def test_what_requests_took_of_the_steps_sums_to_the_time_of_all_steps(depth: int) -> None:
    chance = random.Random(depth)
    executors: list[FailingExecutor] = []
    engine = failing_engine(
        chance,
        executors,
        page_size=8,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        pipeline_depth=depth,
        num_speculative_tokens=2,
        recent_requests=1200,
    )
    began_at = time.monotonic()
    num_requests, endings, statistics = 0, set(), None
    async with engine:
        while num_requests < 1200 and not (
            statistics is not None
            and statistics.num_preemptions
            and {Ending.COMPLETED, Ending.ABORTED, Ending.FAILED} <= endings
        ):  # what meets depends on how busy the machine is
            async with anyio.create_task_group() as clients:
                for number in range(num_requests, num_requests + 60):
                    clients.start_soon(impatient, engine, chance, number)
                    await anyio.sleep(chance.choice((0.0, 0.0, 0.002)))
            num_requests += 60
            await until_idle(engine)
            statistics = engine.statistics()
            endings = {view.ending for view in engine.requests(recent=1200)}
    wall_seconds = time.monotonic() - began_at
    views = engine.requests(recent=1200)
    assert {Ending.COMPLETED, Ending.ABORTED, Ending.FAILED} <= endings
    assert statistics is not None
    assert statistics.num_preemptions > 0
    assert len(views) == num_requests
    assert sum(view.step_seconds for view in views) == pytest.approx(statistics.step_seconds, rel=1e-6)
    assert executors[0].seconds <= statistics.step_seconds <= wall_seconds, "failed steps took their time, too"
    assert all(0 <= view.step_share <= 1 for view in views)
    assert all(view.pages == 0 for view in views)


async def test_a_step_that_is_cancelled_from_under_its_request_is_still_the_requests() -> None:
    gate = Gate()
    async with scripted_engine(before_step=gate, pipeline_depth=1) as engine:
        async with engine.stream("hello", request_id="left"):
            await until(lambda: engine.statistics().num_running == 1)
        await until(lambda: not engine.telemetry.live)
        assert only(engine, "left").step_seconds == 0.0
        gate.let_through(1000)
        await until_idle(engine)
        assert only(engine, "left").step_seconds == pytest.approx(engine.statistics().step_seconds)
        assert only(engine, "left").step_share <= 1.0


# ---- page-seconds


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def telemetry() -> Telemetry:
    config = EngineConfig()
    return Telemetry(config, Tracing(config, None), GenAIMetrics(None), EngineCounters())


@given(seed=st.integers(0, 10**6), depth=st.sampled_from([1, 2]), num_pages=st.integers(8, 30))
@settings(max_examples=40, deadline=None)
def test_page_seconds_are_the_integral_of_the_pages_held(seed: int, depth: int, num_pages: int) -> None:
    chance, clock = random.Random(seed), Clock()
    ledger = step_ledger.StepLedger(telemetry(), stall_seconds=1e9)
    capacity = Capacity(
        num_pages=num_pages,
        page_size=4,
        num_seats=4,
        max_num_batched_tokens=8,
        max_model_len=30,
        vocab_size=50,
    )
    planner = Planner(capacity, prefix_caching=True, pipeline_depth=depth, observer=ledger)
    sequences = [
        Sequence(
            request_id=str(number),
            prompt_token_ids=tuple(range(chance.randrange(1, 15))),
            sampling=SeatSampling(temperature=0.0),
            max_tokens=chance.randrange(1, 12),
            timeline=ChoiceTimeline(0),
        )
        for number in range(8)
    ]
    integrals = [0.0] * len(sequences)
    in_flight: list[Step] = []

    def pass_time() -> None:
        seconds = chance.choice((0.5, 1.0, 3.0))
        for number, sequence in enumerate(sequences):
            integrals[number] += seconds * len(sequence.pages)
        clock.now += seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_ledger, "time", SimpleNamespace(monotonic=clock.monotonic))
        waiting = list(sequences)
        while waiting or planner.has_work:
            if waiting and chance.random() < 0.5:
                planner.add(waiting.pop(0))
            if chance.random() < 0.1:
                planner.cancel(chance.choice(sequences).request_id)
            step = planner.plan()
            if step is not None:
                in_flight.append(step)
            pass_time()
            if in_flight and (step is None or chance.random() < 0.5):
                done = in_flight.pop(0)
                times = StepTimes(clock.now - 0.4, clock.now - 0.3, clock.now - 0.3, clock.now - 0.1)
                if chance.random() < 0.1:
                    ledger.failed(done.number, planner.chunks(done.number), times, RuntimeError("broken"))
                    planner.fail(done.number)
                    continue
                ledger.completed(done.number, planner.chunks(done.number), times)
                result = tuple(_drawn(chunk.sample) for chunk in done.chunks)
                ledger.drew(done.number, planner.complete(done.number, result))
            for number, sequence in enumerate(sequences):
                timeline = sequence.timeline
                timeline.holds(timeline.num_pages, clock.now)
                assert timeline.num_pages == len(sequence.pages)
                assert timeline.page_seconds == pytest.approx(integrals[number])
    assert [sequence.timeline.num_pages for sequence in sequences] == [0] * len(sequences)
    assert sum(integrals) > 0


def _drawn(sample: bool) -> Sampled | None:
    return Sampled((7,)) if sample else None


async def test_pages_and_page_seconds_rest_after_the_end() -> None:
    async with scripted_engine() as engine:
        async with engine.stream("hello", SamplingParams(max_tokens=2000), request_id="left") as stream:
            await stream.next_deltas()
            growing = [only(engine, "left").page_seconds]
            await anyio.sleep(0.01)
            growing.append(only(engine, "left").page_seconds)
            assert only(engine, "left").pages > 0
        await until_idle(engine)
        before = only(engine, "left")
        await asyncio.sleep(0.01)
        assert only(engine, "left") == before
    assert growing[0] < growing[1] <= before.page_seconds
    assert before.pages == 0
