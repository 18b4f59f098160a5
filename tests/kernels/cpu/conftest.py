"""Fixtures of the C kernels' tests: each test runs once for each variant that this machine can run."""

import pytest

from limelight.kernels.cpu.library import Library
from tests.kernels.cpu import libraries


@pytest.fixture(scope="session", params=libraries.VARIANTS)
def library(request: pytest.FixtureRequest) -> Library:
    return libraries.load(request.param)
