"""Whose event loop it is does not matter, as long as it is asyncio's: uvloop, one that runs already as in a notebook,
one of pytest-asyncio or of anyio's plugin. Trio is refused, with what to do instead."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from limelight.config import EngineConfig
from limelight.engine import EngineState
from limelight.errors import EngineNotRunning
from limelight.http import create_app
from limelight.testing import scripted_engine

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str, stdin: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
    )


CELLS = """
from limelight import SamplingParams
from limelight.testing import scripted_engine
engine = scripted_engine("hello from a cell")
await engine.start()
answer = await engine.generate("x", SamplingParams(max_tokens=None))
print("cell:", answer.text)
import asyncio
task = asyncio.create_task(engine.generate("x", SamplingParams(max_tokens=5)))
print("later cell:", (await task).text)
from limelight import LLM
llm = LLM.from_engine(scripted_engine("beside the loop"))
print("sync:", llm.generate("x", use_tqdm=False)[0].text)
llm.close()
await engine.stop()
import threading
print("left:", [thread.name for thread in threading.enumerate() if thread.name.startswith("limelight")])
"""


def test_cells_of_a_notebook_share_an_engine_in_the_loop_that_runs_already() -> None:
    """Each line is run by itself in asyncio's own console, whose loop runs from the first line to the last."""
    done = run("-m", "asyncio", stdin=CELLS)
    shown = [line for line in done.stdout.replace(">>> ", "").replace("... ", "").splitlines() if ": " in line]
    assert shown == ["cell: hello from a cell", "later cell: hello", "sync: beside the loop", "left: []"]
    assert "Error" not in done.stderr


def test_an_engine_lives_under_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> str:
        assert type(__import__("asyncio").get_running_loop()).__module__.startswith("uvloop")
        async with scripted_engine("hello") as engine:
            return (await engine.generate("x")).text

    assert uvloop.run(main()) == "hello"


PYTEST_ASYNCIO = """
import pytest
import pytest_asyncio
from limelight.testing import scripted_engine

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared():
    async with scripted_engine("shared") as engine:
        yield engine

@pytest_asyncio.fixture
async def own():
    async with scripted_engine("own") as engine:
        yield engine

@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", range(3))
async def test_of_the_module(shared, number):
    assert (await shared.generate("x")).text == "shared"

@pytest.mark.asyncio
async def test_of_its_own(own):
    async with own.stream("x") as stream:
        assert "".join([delta.text async for delta in stream]) == "own"
"""

ANYIO = """
import pytest
from limelight.testing import scripted_engine

pytestmark = pytest.mark.anyio

@pytest.fixture(scope="module")
def anyio_backend(request):
    return ("asyncio", {"use_uvloop": request.config.getoption("--uvloop")})

@pytest.fixture(scope="module")
async def shared():
    async with scripted_engine("shared") as engine:
        yield engine

@pytest.fixture
async def own():
    engine = scripted_engine("own")
    await engine.start()
    yield engine
    await engine.stop()

@pytest.mark.parametrize("number", range(3))
async def test_of_the_module(shared, number):
    assert (await shared.generate("x")).text == "shared"

async def test_of_its_own(own):
    async with own.stream("x") as stream:
        assert "".join([delta.text async for delta in stream]) == "own"
"""
SETTINGS = {"pytest_asyncio": "asyncio_default_fixture_loop_scope = function\n"}
OPTION = """
def pytest_addoption(parser):
    parser.addoption("--uvloop", action="store_true")
"""


@pytest.mark.parametrize(
    ("plugin", "options"), [("pytest_asyncio", []), ("anyio", []), ("anyio", ["--uvloop"])], ids=str
)
def test_fixtures_of_the_plugins_for_async_tests_hold_engines(plugin: str, options: list[str], tmp_path: Path) -> None:
    pytest.importorskip(plugin)
    if options:
        pytest.importorskip("uvloop")
    (tmp_path / "pytest.ini").write_text("[pytest]\n" + SETTINGS.get(plugin, ""))
    (tmp_path / "conftest.py").write_text(OPTION)
    (tmp_path / "test_inner.py").write_text(PYTEST_ASYNCIO if plugin == "pytest_asyncio" else ANYIO)
    unused = ["-p", "no:anyio"] if plugin == "pytest_asyncio" else ["-p", "no:asyncio"]
    done = run("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *unused, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_trio_is_refused_with_what_to_do_and_nothing_is_left() -> None:
    pytest.importorskip("trio")
    engine = scripted_engine()

    async def start() -> None:
        await engine.start()

    with pytest.raises(EngineNotRunning, match=r"anyio\.run\(\.\.\., backend='asyncio'\).*class LLM"):
        anyio.run(start, backend="trio")
    assert engine.state is EngineState.NEW

    async def main() -> str:
        async with engine:
            return (await engine.generate("x")).text

    assert anyio.run(main, backend="asyncio"), "it may still be started where it can live"


@pytest.mark.parametrize("made_of", [scripted_engine, EngineConfig])
def test_an_application_refuses_to_come_up_under_trio(made_of: type) -> None:
    pytest.importorskip("trio")

    async def serve() -> None:
        async with create_app(made_of()).lifespan():
            raise AssertionError("it came up")

    with pytest.raises(ExceptionGroup) as refused:
        anyio.run(serve, backend="trio")
    error: BaseException = refused.value
    while isinstance(error, ExceptionGroup):
        [error] = error.exceptions
    assert isinstance(error, EngineNotRunning)
    assert "backend='asyncio'" in str(error)
