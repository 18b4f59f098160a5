"""The embedding rules of docs/architecture.md, section 7: a process looks the same before, inside and after an engine,
but for named threads while inside, and 50 engines leave no more than one. In processes that pytest does not disturb."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.embedding.snapshot import differences, snapshot

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def lifetime(*arguments: str) -> dict[str, Any]:
    """What the program prints; it must say nothing else, neither a warning nor a complaint of the event loop."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.embedding.lifetime", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["scripted"],
        ["scripted", "--uvloop"],
        pytest.param(["default"], marks=pytest.mark.model),
        pytest.param(["default", "--torch"], marks=pytest.mark.model),
    ],
    ids="-".join,
)
def test_a_process_looks_the_same_before_inside_and_after_an_engine(arguments: list[str]) -> None:
    if "--uvloop" in arguments:
        pytest.importorskip("uvloop")
    assert lifetime("traces", *arguments) == {}


def test_fifty_engines_leave_no_memory_thread_or_descriptor() -> None:
    sizes = lifetime("memory", "scripted", "--cycles", "50")
    grown = {name: sizes["ended"][name] - sizes["began"][name] for name in sizes["began"]}
    assert (grown["threads"], grown["descriptors"]) == (0, 0)
    assert sizes["open"]["threads"] > sizes["began"]["threads"]
    assert grown["objects"] < 50, "not one for each engine"
    # Python keeps some freed tuples and ints, and the allocator what threads have used: no more than so much.
    assert grown["traced bytes"] < 50 * 4096
    assert grown["bytes"] < 32 * 1024 * 1024


@pytest.mark.model
@pytest.mark.slow
def test_engines_with_weights_give_their_memory_back() -> None:
    sizes = lifetime("memory", "default", "--cycles", "3")
    grown = {name: sizes["ended"][name] - sizes["began"][name] for name in sizes["began"]}
    weight = sizes["open"]["bytes"] - sizes["began"]["bytes"]
    assert weight > 16 * 1024 * 1024, "an open engine is seen"
    assert (grown["threads"], grown["descriptors"]) == (0, 0)
    assert grown["objects"] < 100
    assert grown["bytes"] < weight, "three engines leave less than one"


def test_the_snapshot_sees_what_it_is_there_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging
    import threading
    import warnings

    before = snapshot()
    monkeypatch.setenv("LIMELIGHT_TEST", "1")
    monkeypatch.setattr(sys, "path", [*sys.path, "elsewhere"])
    logger = logging.getLogger("tests.embedding.handled")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="stray")
    thread.start()
    with warnings.catch_warnings(), Path(os.devnull).open():
        warnings.simplefilter("ignore", SyntaxWarning)
        changed = differences(before, snapshot()).keys()
    gate.set()
    thread.join()
    logger.removeHandler(handler)
    expected = {"environment", "interpreter", "logging", "threads", "native threads", "warnings", "descriptors"}
    assert changed >= expected
