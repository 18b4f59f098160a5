"""What is reported of a download."""

import pytest

from tests.models.hub.hub_server import Reported


@pytest.fixture
def reported() -> Reported:
    return Reported()
