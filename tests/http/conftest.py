"""Fixtures of the HTTP tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import httpx
import pytest

from limelight.engine import Engine
from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.http.wire import serving

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve() -> Serve:
    """`async with serve(engine, settings) as client`; without an engine, one that babbles."""

    def start(
        engine: Engine | None = None, settings: HttpSettings | None = None
    ) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        return serving(engine or scripted_engine(), settings)

    return start


@pytest.fixture
async def shared_client(serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that babbles."""
    async with serve() as client:
        yield client
