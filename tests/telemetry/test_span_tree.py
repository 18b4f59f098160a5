"""The spans of a request: derived from its timeline, they are a sound tree wherever its life was cut off."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import (
    EngineNotRunning,
    InvalidRequest,
    LimelightError,
    Overloaded,
    RequestCancelled,
    RequestExpired,
    StepFailure,
)
from limelight.generation import FinishReason, GenerationRequest, Pooling, SamplingParams, TextPrompt
from limelight.telemetry.span_tree import SpanRecord, spans_of
from limelight.telemetry.telemetry import ending
from limelight.telemetry.timeline import (
    MAX_CHUNKS,
    ChoiceTimeline,
    Ending,
    InterruptionKind,
    PrefillChunk,
    RequestTimeline,
)
from tests.telemetry.trees import check_tree, derived

ARRIVED = 1000.0
ERRORS = [
    None,
    RequestCancelled("left"),
    RequestExpired("too late"),
    Overloaded("full"),
    EngineNotRunning("stopped"),
    InvalidRequest("never"),
    StepFailure("broken"),
]

Events = list[tuple[float, Callable[[], None]]]


def timeline_of(n: int = 1, **fields: object) -> RequestTimeline:
    request = GenerationRequest(request_id="r", prompt=TextPrompt("x"), sampling=SamplingParams(n=n), **fields)
    return RequestTimeline(request, "m", ARRIVED)


def end(timeline: RequestTimeline, at: float, error: LimelightError | None) -> None:
    timeline.ended_at = at
    timeline.error = error
    timeline.ending = ending(error, admitted=timeline.admitted_at is not None)


def scheduled_life(
    draw: st.DrawFn, seconds: st.SearchStrategy[float], choice: ChoiceTimeline, at: float, draws: bool
) -> tuple[Events, float]:
    """What the scheduler writes of one choice, and when it has ended."""
    events: Events = []
    step = draw(st.integers(0, 9))

    def set_to(name: str, at: float) -> None:
        events.append((at, lambda: setattr(choice, name, at)))

    def computed(planned_at: float, done_at: float) -> None:
        chunk = PrefillChunk(step, planned_at, done_at, 0, 16)
        events.append((done_at, lambda: choice.computed(chunk)))

    def interrupted(kind: InterruptionKind, at: float, late: float) -> None:
        events.append((at, lambda: choice.interrupted(kind, at, step, late)))

    at += draw(seconds)
    set_to("scheduled_at", at)
    for _ in range(draw(st.integers(0, 3))):
        planned_at, at = at, at + draw(seconds)
        computed(planned_at, at)
        if draw(st.booleans()):
            interrupted(InterruptionKind.PREEMPTED, at := at + draw(seconds), 0.0)
            interrupted(InterruptionKind.RESUMED, at := at + draw(seconds), 0.0)
    at += draw(seconds)
    if not draws:
        set_to("ended_at", at)
        return events, at
    set_to("first_token_at", at)
    set_to("last_token_at", at)
    for kind in draw(st.lists(st.sampled_from([None, *InterruptionKind]), max_size=4)):
        late = draw(seconds)
        at += late
        if kind is InterruptionKind.RESUMED:
            interrupted(InterruptionKind.RESUMED, at, 0.0)
            planned_at, at = at, at + draw(seconds)
            computed(planned_at, at)
        elif kind is not None:
            interrupted(kind, at, late)
        set_to("last_token_at", at)
    set_to("ended_at", at)
    return events, at


@st.composite
def lives(draw: st.DrawFn) -> tuple[RequestTimeline, float]:
    """A timeline, cut off anywhere, and the time until which it is told."""
    seconds = st.sampled_from([0.0, 1e-6, 0.003, 0.25, 2.0])
    n = draw(st.integers(1, 3))
    draws = draw(st.booleans())
    timeline = timeline_of(n)
    admitted_at = ARRIVED + draw(seconds)
    encoded_at = admitted_at + draw(seconds)
    compiled_at = draw(st.one_of(st.none(), seconds.map(lambda late: admitted_at + late)))
    submitted_at = max(encoded_at, compiled_at or 0.0) + draw(seconds)
    own: Events = [(admitted_at, lambda: setattr(timeline, "admitted_at", admitted_at))]
    own.append((encoded_at, lambda: setattr(timeline, "encoded_at", encoded_at)))
    if compiled_at is not None:
        own.append((compiled_at, lambda: setattr(timeline, "compiled_at", compiled_at)))
    choices = [ChoiceTimeline(index) for index in range(n)]

    def submit() -> None:
        timeline.submit(submitted_at)
        timeline.choices = choices

    own.append((submitted_at, submit))
    scheduled: Events = []
    last = submitted_at
    for choice in choices:
        events, choice_end = scheduled_life(draw, seconds, choice, submitted_at, draws)
        scheduled += events
        last = max(last, choice_end)
    last += draw(seconds)
    cut = ARRIVED + draw(st.floats(0.0, 1.1)) * (last - ARRIVED)
    hears_late = draw(st.booleans())  # the scheduler goes on for a moment: nobody has told it yet
    for at, write in sorted(own, key=lambda event: event[0]):
        if at <= cut:
            write()
    for at, write in sorted(scheduled, key=lambda event: event[0]):
        if at <= cut or hears_late:
            write()
    if draw(st.booleans()):
        end(timeline, cut, draw(st.sampled_from(ERRORS)))
    return timeline, cut


@given(lives())
def test_a_life_cut_off_anywhere_is_a_sound_tree(life: tuple[RequestTimeline, float]) -> None:
    timeline, now = life
    spans = spans_of(timeline, now)
    root = spans[0]
    assert (root.key, root.parent, root.start, root.end) == ("request", None, ARRIVED, now)
    nodes = derived(spans)
    check_tree(nodes, nodes[0])
    keys = [span.key for span in spans]
    assert all(span.parent in keys[:place] for place, span in enumerate(spans) if place)
    erroneous = timeline.ending not in (None, Ending.COMPLETED, Ending.ABORTED) and timeline.error is not None
    assert (root.error is not None) == erroneous
    assert all(span.error is None for span in spans[1:])


@given(lives())
def test_a_later_look_at_an_ended_request_tells_the_same(life: tuple[RequestTimeline, float]) -> None:
    timeline, now = life
    if timeline.ended_at is not None:
        assert spans_of(timeline, now + 60) == spans_of(timeline) == spans_of(timeline, ARRIVED)


def by_key(timeline: RequestTimeline, now: float | None = None) -> dict[str, SpanRecord]:
    return {span.key: span for span in spans_of(timeline, now)}


def prepared(n: int = 1, **fields: object) -> RequestTimeline:
    timeline = timeline_of(n, **fields)
    timeline.admitted_at = ARRIVED + 1
    timeline.encoded_at = ARRIVED + 2
    timeline.encode_seconds = 0.5
    timeline.prompt_tokens = 40
    timeline.submit(ARRIVED + 2)
    return timeline


def answered(timeline: RequestTimeline) -> RequestTimeline:
    choice = timeline.choices[0]
    choice.scheduled_at = ARRIVED + 3
    choice.computed(PrefillChunk(4, ARRIVED + 3, ARRIVED + 3.5, 16, 24))
    choice.first_token_at = ARRIVED + 4
    choice.interrupted(InterruptionKind.PREEMPTED, ARRIVED + 5, 7)
    choice.interrupted(InterruptionKind.RESUMED, ARRIVED + 6, 8)
    choice.computed(PrefillChunk(8, ARRIVED + 6, ARRIVED + 6.5, 32, 10))
    choice.interrupted(InterruptionKind.STALL, ARRIVED + 7, 9, 3.0)
    choice.last_token_at = ARRIVED + 8
    choice.num_tokens = timeline.output_tokens = 5
    choice.cached_tokens = 16
    choice.finish_reason = FinishReason.LENGTH
    choice.ended_at = ARRIVED + 8
    timeline.finish_reasons = (FinishReason.LENGTH,)
    end(timeline, ARRIVED + 9, None)
    return timeline


def test_each_part_of_a_request_has_its_span_and_its_events() -> None:
    spans = by_key(answered(prepared()))
    assert list(spans) == ["request", "admission", "tokenize", "queue", "prefill", "decode"]
    assert [(span.start - ARRIVED, span.end - ARRIVED) for span in spans.values()] == [
        (0, 9),
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (4, 9),
    ]
    (chunk,) = spans["prefill"].events
    assert (chunk.name, chunk.at) == ("chunk", ARRIVED + 3.5)
    assert chunk.attributes == {
        "limelight.step.number": 4,
        "limelight.chunk.start": 16,
        "limelight.chunk.tokens": 24,
        "limelight.chunk.seconds": 0.5,
    }
    assert [(event.name, event.at - ARRIVED) for event in spans["decode"].events] == [
        ("first token", 4),
        ("preempted", 5),
        ("resumed", 6),
        ("chunk", 6.5),
        ("stall", 7),
        ("last token", 8),
    ]
    stall = spans["decode"].events[4]
    assert stall.attributes == {"limelight.step.number": 9, "limelight.stall.seconds": 3.0}
    assert spans["tokenize"].attributes["limelight.tokenize.seconds"] == 0.5
    assert spans["prefill"].attributes["limelight.cached_tokens"] == 16
    assert spans["prefill"].attributes["limelight.num_chunks"] == 1
    attributes = spans["request"].attributes
    assert attributes["gen_ai.usage.input_tokens"] == 40
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["limelight.num_stalls"] == attributes["limelight.num_preemptions"] == 1


def test_constraints_have_a_span_if_the_tokenizer_was_not_what_took_longest() -> None:
    timeline = prepared()
    timeline.compiled_at = ARRIVED + 1.5
    assert "constraints" not in by_key(answered(timeline))
    slow = timeline_of()
    slow.admitted_at, slow.encoded_at, slow.compiled_at = ARRIVED + 1, ARRIVED + 2, ARRIVED + 5
    slow.submit(ARRIVED + 5)
    spans = by_key(slow, ARRIVED + 6)
    assert (spans["tokenize"].start, spans["tokenize"].end) == (ARRIVED + 1, ARRIVED + 2)
    assert (spans["constraints"].start, spans["constraints"].end) == (ARRIVED + 1, ARRIVED + 5)


def test_a_request_that_waits_for_its_constraints_says_so() -> None:
    waits = timeline_of()
    waits.admitted_at, waits.encoded_at = ARRIVED + 1, ARRIVED + 2
    spans = by_key(waits, ARRIVED + 9)
    assert list(spans) == ["request", "admission", "tokenize", "constraints"]
    assert spans["constraints"].end == ARRIVED + 9


def test_several_choices_have_a_span_each_and_the_last_one_to_end_reaches_the_end() -> None:
    timeline = prepared(n=2)
    for choice in timeline.choices:
        choice.scheduled_at = ARRIVED + 3
        choice.first_token_at = ARRIVED + 4
        choice.last_token_at = choice.ended_at = ARRIVED + 5 + choice.index
    end(timeline, ARRIVED + 7, None)
    spans = by_key(timeline)
    assert spans["choice 0"].end == spans["choice 0/decode"].end == ARRIVED + 5
    assert spans["choice 1"].end == spans["choice 1/decode"].end == ARRIVED + 7
    assert [spans[f"choice 1/{name}"].parent for name in ("queue", "prefill", "decode")] == ["choice 1"] * 3


def test_a_request_without_output_ends_with_its_prompt() -> None:
    timeline = prepared(pooling=Pooling.LAST)
    timeline.choices[0].scheduled_at = ARRIVED + 3
    timeline.choices[0].ended_at = ARRIVED + 4
    end(timeline, ARRIVED + 4.5, None)
    spans = by_key(timeline)
    assert list(spans)[-1] == "prefill"
    assert spans["prefill"].end == ARRIVED + 4.5
    assert spans["request"].name == "embeddings m"
    assert "gen_ai.request.temperature" not in spans["request"].attributes


@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        (None, None, None),
        (RequestCancelled("the client left"), None, "request_cancelled"),
        (RequestExpired("5 s are over"), "5 s are over", "request_expired"),
        (Overloaded("full"), "full", "overloaded"),
        (InvalidRequest("secret", param="structured_outputs"), "invalid_value: structured_outputs", "invalid_value"),
        (LimelightError("secret"), "internal_error", "internal_error"),
        (StepFailure("broken"), "broken", "step_failed"),
    ],
)
def test_how_a_request_ended_is_told(error: LimelightError | None, told: str | None, kind: str | None) -> None:
    timeline = prepared()
    end(timeline, ARRIVED + 3, error)
    root = spans_of(timeline)[0]
    assert root.error == told
    assert root.attributes.get("error.type") == kind
    assert root.attributes["limelight.ending"] == timeline.ending
    assert ("limelight.ending_reason" in root.attributes) == (timeline.ending is Ending.ABORTED)


def test_what_is_zero_or_false_is_told_like_anything_else() -> None:
    request = GenerationRequest(
        request_id="r", prompt=TextPrompt("x"), sampling=SamplingParams(temperature=0, seed=0, top_k=0, min_p=0.0)
    )
    attributes = spans_of(RequestTimeline(request, "m", ARRIVED))[0].attributes
    assert attributes["gen_ai.request.temperature"] == 0
    assert attributes["gen_ai.request.seed"] == 0
    assert attributes["gen_ai.request.top_k"] == 0
    assert attributes["limelight.request.constrained"] is False


def test_values_that_no_exporter_can_encode_are_made_fit() -> None:
    request = GenerationRequest(
        request_id="\ud800", prompt=TextPrompt("x"), sampling=SamplingParams(), priority=10**30, owner="o" * 10**6
    )
    root = spans_of(RequestTimeline(request, "\udfff", ARRIVED))[0]
    assert root.name == "text_completion ?"
    assert root.attributes["limelight.request.id"] == "?"
    assert root.attributes["limelight.priority"] == 2**63 - 1
    assert len(str(root.attributes["limelight.owner"])) <= 300


def test_the_events_of_a_span_stay_below_what_an_sdk_keeps() -> None:
    timeline = prepared()
    choice = timeline.choices[0]
    choice.scheduled_at, choice.first_token_at = ARRIVED + 3, ARRIVED + 3
    for number in range(500):
        choice.computed(PrefillChunk(number, ARRIVED + 4, ARRIVED + 4, 0, 16))
        choice.interrupted(InterruptionKind.STALL, ARRIVED + 4, number, 1.0)
    choice.last_token_at, choice.finish_reason = ARRIVED + 5, FinishReason.STOP
    end(timeline, ARRIVED + 6, None)
    events = by_key(timeline)["decode"].events
    assert MAX_CHUNKS < len(events) <= 128
    assert sum(int(event.attributes["limelight.chunk.tokens"]) for event in events if event.name == "chunk") == 8000
