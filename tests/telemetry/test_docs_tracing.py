"""docs/tracing.md and its reference say what the code does: names are those of the conventions, and snippets run."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from limelight.cli.options import build_parser
from limelight.telemetry import conventions
from limelight.telemetry.prometheus.request_rows import REQUEST_ROWS
from limelight.telemetry.timeline import Ending
from limelight.testing import scripted_model

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "tracing.md").read_text()
REFERENCE = (ROOT / "docs" / "tracing_reference.md").read_text()
ATTRIBUTE = re.compile(r"(?:client|error|gen_ai|http|limelight|network|server|url|user_agent)\.[a-z_.]+[a-z]")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, indentation of lists taken away."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table of either page with this word in its top left corner."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE + REFERENCE, re.MULTILINE)
    assert table is not None, heading
    return [[cell.strip().strip("`") for cell in line.strip("|\n").split("|")] for line in table[1].splitlines()]


def named(prefix: str) -> set[str]:
    """Values of the constants in `conventions` whose names begin with `prefix`."""
    return {value for name, value in vars(conventions).items() if name.startswith(prefix)}


def test_every_attribute_is_explained_and_no_other_is_named() -> None:
    constants = {
        value
        for name, value in vars(conventions).items()
        if name.isupper() and not name.startswith("GEN_AI_SERVER_")  # metrics
    }
    known = {value for value in constants if ATTRIBUTE.fullmatch(value)}
    told = {word for word in re.findall(r"`([^`\s]+)`", REFERENCE) if ATTRIBUTE.fullmatch(word)}
    mentioned = {word for word in re.findall(r"`([^`\s]+)`", PAGE) if ATTRIBUTE.fullmatch(word)}
    assert len(known) > 50
    assert told == known
    assert mentioned <= known


def test_every_name_of_the_conventions_is_one_that_the_code_writes() -> None:
    written = set()
    for path in (ROOT / "limelight").rglob("*.py"):
        written.update(re.findall(r"\b(?:names|conventions)\.([A-Z_0-9]+)\b", path.read_text()))
    assert {name for name in vars(conventions) if name.isupper()} <= written


def test_every_span_event_and_ending_is_explained() -> None:
    assert {row[0] for row in rows("span")} == named("SPAN_")
    assert {row[0] for row in rows("event")} == named("EVENT_")
    assert {row[0] for row in rows("ending")} == {ending.value for ending in Ending}


@pytest.fixture
def scripted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Engine()` of the page has a scripted model."""
    monkeypatch.setattr("limelight.engine._default_loader", scripted_model("Paris."))


def ran(code: str) -> dict[str, Any]:
    """What a snippet has defined."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "docs/tracing.md", "exec"), namespace)
    return namespace


@pytest.mark.usefixtures("scripted_by_default")
@pytest.mark.parametrize("code", [code for code in blocks("python") if "asyncio.run" in code])
def test_its_programs_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran(code)
    assert capsys.readouterr().out


@pytest.mark.usefixtures("scripted_by_default")
def test_its_application_makes_one_tree_of_the_hosts_spans_and_ours() -> None:
    (code,) = (code for code in blocks("python") if "FastAPI(" in code)
    namespace = ran(code)
    exporter = InMemorySpanExporter()
    namespace["provider"].add_span_processor(SimpleSpanProcessor(exporter))
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    with TestClient(namespace["app"]) as client:
        assert client.get("/answer", params={"question": "hi"}).json() == {"text": "Paris."}
        assert client.post("/llm/v1/chat/completions", json=body).status_code == 200
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context is not None}
    chats = [span for span in spans.values() if span.name.startswith("chat ")]
    above = [[parent.name for parent in ancestors(span, spans)] for span in chats]
    assert above == [["GET /answer"], ["POST /llm/v1/chat/completions", "POST /llm"]]


def ancestors(span: Any, spans: dict[int, Any]) -> list[Any]:
    """Those above it, the nearest first."""
    found = []
    while span.parent is not None:
        span = spans[span.parent.span_id]
        found.append(span)
    return found


def commands() -> list[str]:
    lines = [line for code in blocks("bash") for line in code.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("command", [line for line in commands() if "limelight " in line])
def test_its_commands_have_options_that_exist(command: str) -> None:
    words = shlex.split(command, comments=True)
    while words[0] != "limelight":
        variable, _, value = words.pop(0).partition("=")
        assert re.fullmatch(r"[A-Z_]+", variable)
        assert value
    assert build_parser({}).parse_args(words[1:]).command == "serve"


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("curl ")])
def test_what_it_asks_of_a_server_is_answered(command: str, scripted_server: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    address = scripted_server.removesuffix("/")
    command = command.replace("http://127.0.0.1:8000", address).replace('"MODEL"', '"scripted"')
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout
    assert '"error"' not in done.stdout


def test_its_queries_are_of_metrics_that_exist() -> None:
    histograms = {row.name for row in REQUEST_ROWS if row.kind == "histogram"}
    assert blocks("promql")
    for query in blocks("promql"):
        promql_parser.parse(query)
        assert set(re.findall(r"limelight_\w+(?=_bucket)", query)) <= histograms
        assert "limelight_" in query


def test_every_block_is_one_of_those() -> None:
    assert len(blocks("python")) == 2
    assert all(line.startswith("curl ") or "limelight " in line for line in commands())
    assert set(re.findall(r"^ *```(\w+)$", PAGE, re.MULTILINE)) <= {"bash", "json", "promql", "python", "text", "yaml"}
