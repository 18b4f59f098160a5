"""Fixtures of the C kernels' tests: each test runs once for each variant that this machine can run."""

from collections.abc import Iterator

import pytest

from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.threads import ThreadPool
from tests.kernels.cpu import libraries


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
