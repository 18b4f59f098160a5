"""Every block of code in the pages runs, or is marked with a reason that is listed here."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import yaml

from limelight.cli import main
from limelight.cli.names import check_names
from limelight.cli.options import build_parser
from limelight.cli.serve import http_settings
from limelight.cli.settings import engine_config
from tests.docs.pages import ROOT, Fence, all_fences, commands, current_pages, without_fences

ADDRESS = "http://127.0.0.1:8000"
REASONS = {
    "installs": "it would install packages, or set the whole repository up",
    "another program": "settings of a program that is not part of this repository's tests",
    "measures": "it measures for minutes",
    "files of your own": "it names models, adapters or files that only its reader has",
}
SHOWN = {"", "text", "console"}
"""Languages of what is shown, not run."""
OWN_TESTS = {
    "docs/embedding.md": "tests/embedding/test_docs_embedding.py",
    "docs/testing.md": "tests/kit/test_as_a_foreign_project.py",
    "docs/tracing.md": "tests/telemetry/test_docs_tracing.py",
}
"""Pages whose Python another file runs."""
RUNS = {("models",), ("models", "--supported"), ("doctor",)}
"""Commands, beside `generate`, that are run to their end; of the others the options are read and checked."""

FENCES = all_fences()
RUN = [fence for fence in FENCES if fence.reason is None]


def marked(language: str) -> list[Any]:
    return [pytest.param(fence, id=fence.place) for fence in RUN if fence.language == language]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of `limelight serve` with the default model."""
    with subprocess.Popen(
        [sys.executable, "-m", "limelight", "serve", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip()
        process.terminate()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No snippet asks the hub for anything."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_every_block_is_of_a_language_that_is_run_or_has_a_listed_reason() -> None:
    run = {"bash", "sh", "python", "json", "yaml", "promql", *SHOWN}
    assert [fence.place for fence in RUN if fence.language not in run] == []
    assert {fence.reason for fence in FENCES if fence.reason} == set(REASONS)
    assert [fence.place for fence in FENCES if fence.reason and fence.language in SHOWN] == []


def test_pages_with_tests_of_their_own_have_them() -> None:
    assert [page for page, test in OWN_TESTS.items() if page in current_pages() and not (ROOT / test).exists()] == []


@pytest.mark.model
@pytest.mark.parametrize("fence", [one for one in marked("python") if one.values[0].page not in OWN_TESTS])
def test_python_runs(fence: Fence, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = compile(fence.code.replace(ADDRESS, server), fence.place, "exec")
    exec(code, {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("fence", marked("json"))
def test_json_is_json(fence: Fence) -> None:
    json.loads(fence.code)


@pytest.mark.parametrize("fence", marked("yaml"))
def test_yaml_is_yaml(fence: Fence) -> None:
    assert yaml.safe_load(fence.code)


def shell_commands() -> list[Any]:
    return [
        pytest.param(command, id=f"{fence.place} {command[:40]}")
        for language in ("bash", "sh")
        for fence in RUN
        if fence.language == language
        for command in commands(fence.code)
    ]


def test_every_command_is_one_that_is_checked() -> None:
    first = {words_of(param.values[0])[0] for param in shell_commands()}
    assert first <= {"limelight", "make", "curl"}


def words_of(command: str) -> list[str]:
    """The words of a command, without the variables in front."""
    words = shlex.split(command, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def which(program: str) -> list[Any]:
    return [param for param in shell_commands() if words_of(param.values[0])[0] == program]


@pytest.mark.model
@pytest.mark.parametrize("command", which("curl"))
def test_a_server_answers(command: str, server: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    command = command.replace(ADDRESS, server.removesuffix("/")).replace('"MODEL"', '"SmolLM2-135M-Instruct"')
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout
    assert '"error": {' not in done.stdout
    assert '"error":{' not in done.stdout


def check_command(words: list[str]) -> None:
    """Everything that a command checks before it loads a model."""
    options = build_parser({}).parse_args(words)
    if options.command == "serve":
        http_settings(options)
    if options.command in ("serve", "chat", "generate", "models", "doctor", "run-batch"):
        engine_config(options)
        placeholder = re.fullmatch(r"[./].*|[A-Z]+", options.model or "")  # of whoever reads it
        if not placeholder:
            check_names(options)


@pytest.mark.parametrize("command", which("limelight"))
def test_its_options_are_accepted(command: str) -> None:
    check_command(words_of(command)[1:])


def run_to_the_end() -> list[Any]:
    words = [(param, words_of(param.values[0])[1:]) for param in which("limelight")]
    return [param for param, said in words if tuple(said) in RUNS or said[0] == "generate"]


@pytest.mark.model
@pytest.mark.parametrize("command", run_to_the_end())
def test_it_runs_to_its_end(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(command)[1:]
    code = main(words)
    assert capsys.readouterr().out.strip()
    assert code == 0 or words == ["doctor"]  # whether port 8000 is free is not for a test to say


@pytest.mark.parametrize("command", which("make"))
def test_make_has_its_targets_and_variables(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words_of(command)[1:]:
        name, given, _ = word.partition("=")
        assert re.search(rf"\$\({name}\)" if given else rf"^{name}:", makefile, re.MULTILINE), word


def commands_in_prose() -> list[Any]:
    pattern = r"`(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?limelight ([^`]+)`"
    return [
        pytest.param(command, id=f"{page} {command}")
        for page, text in current_pages().items()
        for command in re.findall(pattern, without_fences(text))
        if "..." not in command and "[" not in command
    ]


@pytest.mark.parametrize("command", commands_in_prose())
def test_commands_in_prose_are_accepted(command: str) -> None:
    words = shlex.split(command)
    with contextlib.redirect_stdout(io.StringIO()):
        if words[-1] == "--help" or words in (["bench"], ["run-batch"], ["replay"]):
            with pytest.raises(SystemExit) as ended:
                build_parser({}).parse_args([words[0], "--help"])
            assert ended.value.code == 0
        else:
            check_command(words)


def service_commands() -> list[Any]:
    """What the settings of other programs start."""
    found = []
    for fence in FENCES:
        found += [
            pytest.param(shlex.split(line), id=fence.place)
            for line in re.findall(r"^ExecStart=(.*)$", fence.code, re.MULTILINE)
        ]
        found += [
            pytest.param(json.loads(line), id=fence.place)
            for line in re.findall(r"^CMD (\[.*\])$", fence.code, re.MULTILINE)
        ]
    return found


@pytest.mark.parametrize("words", service_commands())
def test_what_services_start_is_accepted(words: list[str]) -> None:
    assert Path(words[0]).name == "limelight"
    check_command(words[1:])
