"""What Limelight's own loggers write: a line per request, ids in every record about one, and never content."""

import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from limelight.engine import Engine
from limelight.errors import InvalidRequest, LimelightError, StepFailure
from limelight.generation import ChatPrompt, GenerationRequest, SamplingParams, TextPrompt
from limelight.http import HttpSettings
from limelight.telemetry.log_fields import ID_FIELDS, WithheldError, of_http_request, of_span, without_message
from limelight.telemetry.request_log import EXCHANGE_FIELDS, REQUEST_FIELDS, log_exchange
from limelight.testing import ByteVocabulary, PlainChatFormat, echo, scripted_engine, scripted_model
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, serving

pytestmark = pytest.mark.anyio

PROMPT, ANSWER, KEY, PARENT = "canary-prompt-7f3a", "canary-answer-91bc", "canary-key-55d0", "canary-argument-02ee"
CANARIES = (PROMPT, ANSWER, KEY, PARENT)
TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B7
SPAN = trace.NonRecordingSpan(trace.SpanContext(TRACE_ID, SPAN_ID, is_remote=False))


class Records(logging.Handler):
    """Everything that Limelight's loggers write, at DEBUG."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.all: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record)

    def of(self, name: str) -> list[logging.LogRecord]:
        return [record for record in self.all if record.name == name]

    def text(self) -> str:
        """All that a formatter could show of them: messages, attributes, tracebacks with their causes."""
        formatter = logging.Formatter()
        return "\n".join(f"{formatter.format(record)} {vars(record)}" for record in self.all)


@pytest.fixture
def records() -> Iterator[Records]:
    """Of Limelight alone: other libraries' loggers are configured by whoever runs them."""
    handler, logger = Records(), logging.getLogger("limelight")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def request_lines(records: Records) -> list[logging.LogRecord]:
    """The lines of requests that the engine knew."""
    return [record for record in records.of("limelight.requests") if hasattr(record, "ending")]


# ---- the line of a request


async def test_a_completed_request_leaves_one_line_with_its_numbers(records: Records) -> None:
    async with scripted_engine("abc") as engine:
        request = GenerationRequest(
            request_id="one", prompt=TextPrompt("hello"), sampling=SamplingParams(), owner="ann", http_request_id="h-1"
        )
        async with engine.open(request) as stream:
            await stream.result()
    (line,) = request_lines(records)
    assert line.levelno == logging.INFO
    fields = vars(line)
    assert {name: fields[name] for name in ("request_id", "http_request_id", "model", "ending", "owner")} == {
        "request_id": "one",
        "http_request_id": "h-1",
        "model": "scripted",
        "ending": "completed",
        "owner": "ann",
    }
    assert (line.prompt_tokens, line.output_tokens) == (6, 4)
    assert 0 <= line.queue_seconds <= line.ttft_seconds <= line.total_seconds
    assert not hasattr(line, "code")
    assert line.getMessage().startswith(
        "request one: operation=text_completion model=scripted ending=completed owner=ann"
    )


async def test_a_refused_request_leaves_its_line_too(records: Records) -> None:
    async with scripted_engine() as engine:
        with pytest.raises(LimelightError):
            await engine.generate("hi", adapter="no such\nadapter")
    (line,) = request_lines(records)
    assert (line.ending, line.code, line.prompt_tokens) == ("invalid", "model_not_found", 0)
    assert not hasattr(line, "ttft_seconds")
    assert "\n" not in line.getMessage()


async def test_a_line_has_the_trace_where_somebody_traces(records: Records) -> None:
    engine = Engine("scripted", loader=scripted_model("abc"), tracer_provider=TracerProvider(shutdown_on_exit=False))
    async with engine:
        await engine.generate("hi")
    (line,) = request_lines(records)
    assert len(line.trace_id) == 32
    assert len(line.span_id) == 16


async def test_nothing_is_written_below_the_level_that_the_host_chose(records: Records) -> None:
    logging.getLogger("limelight").setLevel(logging.WARNING)
    async with scripted_engine("abc") as engine:
        await engine.generate("hi")
    assert not records.all


@pytest.mark.parametrize(("status", "level"), [(401, logging.INFO), (404, logging.INFO), (200, logging.DEBUG)])
def test_an_exchange_that_never_reached_the_engine_has_a_line(records: Records, status: int, level: int) -> None:
    log_exchange(
        http_request_id="h-2", method="GET", route=None, status=status, seconds=0.25, code="x", owner="ann", span=SPAN
    )
    (line,) = records.of("limelight.requests")
    assert line.levelno == level
    assert (line.status, line.total_seconds, line.trace_id) == (status, 0.25, f"{TRACE_ID:032x}")
    assert line.getMessage() == f"HTTP request h-2: method=GET status={status} code=x owner=ann total_seconds=0.25"


@given(st.text(max_size=200))
def test_a_line_stays_a_line_whatever_stands_in_a_name(name: str) -> None:
    handler, logger = Records(), logging.getLogger("limelight.requests")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        log_exchange(http_request_id="h", method="GET", route="/", status=400, seconds=1.0, owner=name)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    message = handler.all[0].getMessage()
    assert message.isprintable()
    assert message.startswith("HTTP request h: method=GET route=/ status=400 owner=")


def test_fields_do_not_collide_with_those_of_every_record() -> None:
    own = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    assert not own & {*ID_FIELDS, *REQUEST_FIELDS, *EXCHANGE_FIELDS}


async def test_a_host_whose_filter_fails_harms_no_request(records: Records) -> None:
    def fail(record: logging.LogRecord) -> bool:
        raise KeyError(record.levelname)

    records.addFilter(fail)
    async with scripted_engine("abc") as engine:
        assert (await engine.generate("hi")).outputs[0].text == "abc"
        assert (await engine.generate("hi")).outputs[0].text == "abc"


# ---- fields


def test_spans_give_their_ids_and_no_span_gives_none() -> None:
    assert of_span(SPAN) == {"trace_id": f"{TRACE_ID:032x}", "span_id": f"{SPAN_ID:016x}"}
    assert of_span(None) == {}
    assert of_span(trace.INVALID_SPAN) == {}
    assert of_http_request("h", SPAN) == {"http_request_id": "h", **of_span(SPAN)}


def test_an_error_is_logged_without_what_it_or_its_causes_quote() -> None:
    def fails() -> None:
        try:
            int(PROMPT)
        except ValueError as error:
            raise InvalidRequest(f"not a number: {PROMPT}") from error

    with pytest.raises(InvalidRequest) as caught:
        fails()
    shown = "".join(traceback.format_exception(without_message(caught.value)))
    assert PROMPT not in shown
    assert shown.count("WithheldError") == 2
    for told in ("ValueError", "limelight.errors.InvalidRequest", "test_logs.py", "in fails", "direct cause"):
        assert told in shown


def test_the_parts_of_a_group_are_logged_alike() -> None:
    group = ExceptionGroup(PROMPT, [ValueError(PROMPT), ExceptionGroup("inner", [KeyError(PROMPT)])])
    shown = "".join(traceback.format_exception(without_message(group)))
    assert PROMPT not in shown
    for told in ("ExceptionGroup", "ValueError", "KeyError"):
        assert told in shown


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert isinstance(without_message(first), WithheldError)


# ---- content


class BrokenChatFormat(PlainChatFormat):
    """Renders, or fails as a library does that quotes what it was given."""

    def render(self, prompt: ChatPrompt) -> str:
        text = "".join(str(message["content"]) for message in prompt.messages)
        if "break" in text:
            raise ValueError(f"cannot render {text!r}")
        return super().render(prompt)


class BrokenVocabulary(ByteVocabulary):
    """Cannot decode, and says what."""

    def token_bytes(self, token_id: int) -> bytes:
        raise ValueError(f"cannot decode {token_id} of {ANSWER}")


async def test_no_log_has_content_or_keys_however_a_request_ends(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = HttpSettings(api_keys={"ann": KEY}, trust_request_chat_template=True)
    engine = scripted_engine(ANSWER, chat_format=BrokenChatFormat())
    say = [{"role": "user", "content": PROMPT}]
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": PROMPT}}}
    statuses = {}
    async with serving(engine, settings) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        bodies = {
            "whole": chat_body(messages=say),
            "streamed": chat_body(messages=say, stream=True),
            "no number": chat_body(messages=say, temperature=PROMPT),
            "out of range": chat_body(messages=say, max_tokens=-1),
            "unknown field": chat_body(messages=say, max_token=PROMPT),
            "no model": chat_body(messages=say) | {"model": PROMPT},
            "broken renderer": chat_body(messages=[{"role": "user", "content": f"break {PROMPT}"}]),
            "no template": chat_body(messages=say, chat_template="{% if " + PROMPT),
            "template raises": chat_body(messages=say, chat_template="{{ raise_exception(messages[0].content) }}"),
            "template fails": chat_body(messages=say, chat_template="{{ messages[0].content + 1 }}"),
            "schema": chat_body(messages=say, response_format=schema),
        }
        for name, body in bodies.items():
            statuses[name] = (await client.post(CHAT, json=body)).status_code
        statuses["no JSON"] = (await client.post(CHAT, content=f"{{{PROMPT}")).status_code
        statuses["no route"] = (await client.get(f"/{PROMPT}?key={KEY}")).status_code
        statuses["wrong key"] = (
            await client.post(CHAT, json=bodies["whole"], headers={"authorization": f"Bearer {KEY}{KEY}"})
        ).status_code
        with monkeypatch.context() as patch:
            patch.setattr("limelight.http.chat_frames.ChatFrames.frames", fail_with_content)
            statuses["broken writer"] = (await client.post(CHAT, json=bodies["streamed"])).status_code
        with monkeypatch.context() as patch:
            patch.setattr(engine.model.vocabulary, "token_bytes", BrokenVocabulary().token_bytes)
            statuses["broken decoder"] = (await client.post(CHAT, json=bodies["whole"])).status_code
    expected = {"whole": 200, "streamed": 200, "broken writer": 200, "no route": 404, "no model": 404, "wrong key": 401}
    expected |= {"broken renderer": 500, "broken decoder": 500}
    assert statuses == {name: expected.get(name, 400) for name in statuses}
    assert {"completed", "failed", "invalid"} <= {line.ending for line in request_lines(records)}
    assert len([record for record in records.all if record.exc_info]) >= 3, "bugs are in the log, with tracebacks"
    assert_no_content(records)


def fail_with_content(*_: object) -> None:
    raise ValueError(f"{PARENT} {PROMPT} {ANSWER}")


async def test_no_log_has_content_when_clients_leave_or_a_step_fails(records: Records) -> None:
    failing = False

    def before_step(_: object) -> None:
        if failing:
            raise RuntimeError("device fault")

    async with serving(scripted_engine(echo, before_step=before_step, step_seconds=0.001)) as client:
        async with client.stream("POST", COMPLETIONS, json=completion_body(prompt=PROMPT * 50, stream=True)) as answer:
            await anext(answer.aiter_bytes())
        with anyio.fail_after(60):
            while not request_lines(records):
                await anyio.sleep(0.01)
        failing = True
        assert (await client.post(COMPLETIONS, json=completion_body(prompt=PROMPT))).status_code == 500
    assert [(line.ending, line.code) for line in request_lines(records)] == [
        ("aborted", "request_cancelled"),
        ("failed", StepFailure.code),
    ]
    assert "device fault" in records.text()
    assert_no_content(records)


def assert_no_content(records: Records) -> None:
    text = records.text()
    for canary in CANARIES:
        at = text.find(canary)
        assert at < 0, text[max(0, at - 500) : at + 100]


# ---- the host's logging is the host's


def test_the_library_configures_no_logging() -> None:
    program = """
import asyncio, logging

def state():
    root = logging.getLogger()
    loggers = {name: (item.level, item.handlers, item.filters, item.propagate)
        for name, item in logging.Logger.manager.loggerDict.items()
        if name.startswith("limelight") and isinstance(item, logging.Logger)}
    return root.level, list(root.handlers), [kept for kept in loggers.values() if kept != (0, [], [], True)]

before = state()
from limelight.http import create_app
from limelight.testing import scripted_engine

async def main():
    async with scripted_engine("abc") as engine:
        create_app(engine)
        await engine.generate("hi")

asyncio.run(main())
assert before == state() == (logging.WARNING, [], []), state()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
