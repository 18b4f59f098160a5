"""Fixtures of all tests: asynchronous tests are marked `anyio` and run on asyncio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
