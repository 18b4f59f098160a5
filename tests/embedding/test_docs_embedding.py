"""docs/embedding.md: every snippet runs, and what it says of threads and errors is so."""

import ast
import asyncio
import os
import re
import subprocess
import sys
import threading
from inspect import iscoroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from limelight import errors
from limelight.testing import babble, scripted_engine, scripted_model
from tests.http.wire import CHAT, chat_body, client_of

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "embedding.md").read_text()
BLOCK = re.compile(r"^```python ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(kind, code) for kind, code in BLOCK.findall(PAGE)]
PROGRAMS = [code for kind, code in BLOCKS if not kind and "\napp = " not in code]
APPLICATIONS = [code for kind, code in BLOCKS if not kind and "\napp = " in code]


@pytest.fixture(autouse=True)
def _scripted_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limelight.engine._default_loader", scripted_model(babble, step_seconds=0.001))


def test_every_snippet_is_of_a_kind_that_is_run() -> None:
    assert PAGE.count("```python") == len(BLOCKS)
    assert {kind for kind, _ in BLOCKS} == {"", "notebook", "test"}
    assert (len(PROGRAMS), len(APPLICATIONS)) == (6, 3)


@pytest.mark.parametrize("code", PROGRAMS)
def test_a_program_runs_and_prints(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "docs/embedding.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.anyio
@pytest.mark.parametrize("code", APPLICATIONS)
async def test_an_application_serves_its_own_routes_and_the_api(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)  # where frameworks look for what annotations name
    names = vars(module)
    exec(compile(code, "docs/embedding.md", "exec"), names)
    async with client_of(names["app"]) as client:
        answer = await client.post(f"/llm{CHAT}", json=chat_body(max_tokens=3))
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert (await client.get("/llm/")).status_code == 200
        for path in re.findall(r'^@(?:app\.)?get\("(/\w+)"\)', code, re.MULTILINE):
            answer = await client.get(path, params={"topic": "rain", "text": "rain"})
            assert answer.status_code == 200
            assert len(answer.text) > 20
    assert names["engine"].state == "stopped"


def test_the_cells_of_a_notebook_run_in_a_loop_that_runs_already(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = [code for kind, code in BLOCKS if kind == "notebook"]
    names: dict[str, Any] = {}

    async def notebook() -> None:
        for cell in code.split("\n\n"):
            compiled = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            outcome = eval(compiled, names)
            if iscoroutine(outcome):
                await asyncio.create_task(outcome)

    asyncio.run(notebook())
    assert capsys.readouterr().out.strip()
    assert names["engine"].state == "stopped"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    [code] = [code for kind, code in BLOCKS if kind == "test"]
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_bot.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.anyio
async def test_the_page_names_every_thread() -> None:
    told = {name.removesuffix("-N") for name in re.findall(r"`(limelight-[\w-]+)`", PAGE)}
    async with scripted_engine("hello") as engine:
        await engine.generate("x")
        names = {re.sub(r"-\d+$", "", thread.name) for thread in threading.enumerate()}
    ours = {name for name in names if name.startswith("limelight-")}
    assert ours
    assert ours <= told
    written = set()
    for path in (ROOT / "limelight").rglob("*.py"):
        if {"cli", "doctor", "testing"}.isdisjoint(path.parts):  # which no program that embeds an engine runs
            written.update(
                re.findall(r'(?:WorkerThreads\(|thread_name_prefix=|, name=)"(limelight-[\w-]+)"', path.read_text())
            )
    assert written - {"limelight-engine"} <= told, "the owner of an engine is a task"


def test_the_errors_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(\w*(?:Error|Failed|NotRunning|Cancelled|OnAsyncio|Overloaded))s?`", PAGE)) - {
        "TimeoutError"
    }
    assert len(named) >= 5
    assert all(hasattr(errors, name) for name in named)
