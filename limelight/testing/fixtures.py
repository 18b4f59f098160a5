"""Fixtures for pytest. Switch them on in your `conftest.py`: `pytest_plugins = ["limelight.testing.fixtures"]`.

They are plain fixtures, so that tests may be functions or coroutines, under anyio's plugin, pytest-asyncio or neither.
pytest does not find them by itself: they would be imported into the tests of every project beside which Limelight is
installed.
"""

from collections.abc import Iterator

import pytest

from limelight.config import EngineOptions
from limelight.engine import Engine
from limelight.http import HttpSettings
from limelight.testing.answers import ANSWER_FORMAT, Answers
from limelight.testing.live_server import LiveServer, live_server
from limelight.testing.model import scripted_engine
from limelight.testing.script import Script


@pytest.fixture
def limelight_script() -> Script:
    """What the model answers: "Hello!" to everything. Override it."""
    return Answers()


@pytest.fixture
def limelight_options() -> EngineOptions:
    """Options of the engine: none. Override it."""
    return {}


@pytest.fixture
def limelight_settings() -> HttpSettings:
    """Settings of the HTTP application: the defaults. Override it."""
    return HttpSettings()


@pytest.fixture
def limelight_engine(limelight_script: Script, limelight_options: EngineOptions) -> Engine:
    """An engine that is not started yet: `async with limelight_engine:` in the test's own loop."""
    return scripted_engine(limelight_script, answer_format=ANSWER_FORMAT, **limelight_options)


@pytest.fixture
def limelight_server(
    limelight_script: Script, limelight_options: EngineOptions, limelight_settings: HttpSettings
) -> Iterator[LiveServer]:
    """A server on a real socket, in a thread of its own."""
    with live_server(limelight_script, settings=limelight_settings, **limelight_options) as server:
        yield server
