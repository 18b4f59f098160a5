"""The log of a server: text for people, JSON for machines; the same for uvicorn's loggers."""

import json
import logging
import re
import signal
import subprocess
import sys
import urllib.request
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.cli.log_format import JsonFormatter, TextFormatter, configure_logging
from tests.telemetry.otlp_receiver import otlp_receiver
from tests.test_cli import QUICK, serving

ROOT = Path(__file__).resolve().parents[2]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def record(message: str, *arguments: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("limelight.test", logging.WARNING, __file__, 1, message, arguments, None)
    made.__dict__.update(fields)
    return made


@given(st.text(), st.dictionaries(st.sampled_from(["request_id", "model", "owner", "trace_id"]), st.text(), max_size=4))
def test_a_record_is_one_line_of_json_whatever_it_holds(message: str, fields: dict[str, str]) -> None:
    line = JsonFormatter().format(record("%s", message, **fields))
    assert line.isascii()
    assert "\n" not in line
    read = json.loads(line)
    assert (read["message"], read["level"], read["logger"]) == (message, "warning", "limelight.test")
    assert {name: read[name] for name in fields} == fields


def test_a_line_has_the_time_of_rfc_3339_and_the_fields_that_are_known() -> None:
    made = record(
        "hello", request_id="a", trace_id=TRACE_ID, total_seconds=0.25, code=None, color_message="x", secret="y"
    )
    read = json.loads(JsonFormatter().format(made))
    time = datetime.fromisoformat(read.pop("time"))
    assert time.utcoffset() == timedelta()
    assert abs(time.timestamp() - made.created) < 0.001
    assert read == {
        "level": "warning",
        "logger": "limelight.test",
        "message": "hello",
        "request_id": "a",
        "trace_id": TRACE_ID,
        "total_seconds": 0.25,
    }


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_error_comes_with_its_traceback(formatter: logging.Formatter) -> None:
    with pytest.raises(KeyError) as caught:
        {}["what"]
    made = record("broken", trace_id=TRACE_ID)
    made.exc_info = (caught.type, caught.value, caught.tb)
    line = formatter.format(made)
    for told in ("broken", TRACE_ID, "Traceback", "KeyError: 'what'"):
        assert told in line


def test_text_has_the_trace_where_there_is_one() -> None:
    assert TextFormatter().format(record("hello")).endswith(" WARNING limelight.test: hello")
    assert TextFormatter().format(record("hello", trace_id=TRACE_ID)).endswith(f": hello trace_id={TRACE_ID}")


PROGRAM = """
import asyncio, logging, sys, warnings
from limelight.cli.log_format import configure_logging

def quote(error):
    try:
        raise error
    except BaseException:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application")

configure_logging("info", sys.argv[1])
logging.getLogger("uvicorn.error").info("started")
logging.getLogger("uvicorn.access").debug("too fine")
logging.getLogger("somebody.else").warning("told")
quote(ValueError("can" + "ary"))
quote(asyncio.CancelledError("canary"))
warnings.warn("careful")
"""


def logged(log_format: str) -> str:
    """What `PROGRAM` writes."""
    program = [sys.executable, "-c", PROGRAM, log_format]
    return subprocess.run(program, cwd=ROOT, capture_output=True, timeout=60, check=True).stderr.decode()


def test_uvicorn_and_everybody_else_log_alike_and_without_content() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "json"], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
    told = [(line["logger"], line["message"].partition("\n")[0]) for line in lines]
    assert told[:3] == [
        ("uvicorn.error", "started"),
        ("somebody.else", "told"),
        ("uvicorn.error", "Exception in ASGI application"),
    ]
    assert "careful" in told[3][1]
    assert len(told) == 4
    assert "ValueError" in lines[2]["exception"]
    assert "canary" not in lines[2]["exception"]


def test_text_is_the_same_in_words() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "text"], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    text = done.stderr.decode()
    assert re.search(r"^\d{4}-\d\d-\d\d [\d:,]+ INFO uvicorn.error: started$", text, re.MULTILINE)
    assert "canary" not in text


def test_serve_logs_json_alone_with_the_ids_of_requests_and_traces() -> None:
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "canary"}]}).encode()
    headers = {"content-type": "application/json", "x-request-id": "mine"}
    with (
        otlp_receiver() as receiver,
        serving(QUICK, "--log-format", "json", "--otlp-endpoint", receiver.url, "--trace-content") as server,
    ):
        request = urllib.request.Request(f"{server.url}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 200
        assert server.get("/canary")[0] == 404
        assert server.get("/health")[0] == 200
        server.signal(signal.SIGTERM)
        code, errors = server.end()
        trace_ids = {span.trace_id.hex() for span in receiver.spans if span.name == "chat scripted"}
    assert code == 0
    assert "canary" not in errors
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["level"] for line in lines if line["message"].startswith("--trace-content")] == ["warning"]
    served, refused = [line for line in lines if line["logger"] == "limelight.requests"]
    assert (served["http_request_id"], served["ending"], served["model"]) == ("mine", "completed", "scripted")
    assert {served["trace_id"]} == trace_ids
    assert served["output_tokens"] > 0
    assert (refused["status"], refused["method"]) == (404, "GET")
    assert "route" not in refused


def test_paths_are_logged_without_their_query(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("uvicorn.access")
    monkeypatch.setattr(log, "filters", [])
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "filters", [])
    configure_logging("debug", "text")
    access = log.makeRecord(
        log.name,
        logging.INFO,
        "",
        0,
        '%s - "%s %s HTTP/%s" %d',
        ("127.0.0.1:1", "GET", "/v1/models?api_key=secret", "1.1", 200),
        None,
    )
    assert log.filter(access)
    assert access.getMessage() == '127.0.0.1:1 - "GET /v1/models HTTP/1.1" 200'
