"""Fixtures of the C kernels' tests: each test runs once for each variant that this machine can run."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Program, Recorder
from limelight.kernels.cpu.threads import ThreadPool
from tests.kernels.cpu import libraries
from tests.kernels.cpu.values_apart import finish_apart

COMPILE_SECONDS = 600

if libraries.SANITIZE:
    settings.register_profile("sanitized", max_examples=10)
    settings.load_profile("sanitized")


def pytest_itemcollected(item: pytest.Item) -> None:
    """The first test of a variant compiles it, which takes minutes where many processes share few cores."""
    if "library" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(COMPILE_SECONDS))


@pytest.fixture(scope="session", params=libraries.VARIANTS)
def library(request: pytest.FixtureRequest) -> Library:
    reason = libraries.why_not(request.param)
    if reason:
        pytest.skip(reason)
    return libraries.load(request.param)


@pytest.fixture(scope="session")
def pool(library: Library) -> Iterator[ThreadPool]:
    """Three threads: more than a small machine has cores, so that some are put aside in the middle of their work."""
    pool = ThreadPool(library, 3)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def ends_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the address sanitizer, values do not lie side by side."""
    if libraries.SANITIZE.startswith("address"):
        monkeypatch.setattr(Recorder, "finish", finish_apart(Recorder.finish))


@pytest.fixture(autouse=True)
def threads_to_watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the thread sanitizer, programs that would run on one thread run on several."""
    if libraries.SANITIZE == "thread" and "library" in request.fixturenames:
        alone, watched = Program.run, request.getfixturevalue("pool")
        monkeypatch.setattr(Program, "run", lambda program, pool=None: alone(program, pool or watched))
