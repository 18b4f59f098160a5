"""How many steps are in flight where nobody says."""

import msgspec
import pytest

from limelight.actors.scheduling.observer import Unobserved
from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.running_parts import make_planner
from limelight.testing import scripted_model


@pytest.mark.parametrize(
    ("asked", "overlaps", "depth"), [(None, False, 1), (None, True, 2), (1, True, 1), (2, False, 2), (2, True, 2)]
)
def test_a_second_step_is_in_flight_where_it_overlaps_the_first_or_is_asked_for(
    asked: int | None, overlaps: bool, depth: int
) -> None:
    config = EngineConfig(pipeline_depth=asked)
    model = scripted_model()(config, lambda what, fraction: None)
    planner = make_planner(config, msgspec.structs.replace(model, overlaps_steps=overlaps), Unobserved())
    assert planner._pipeline_depth == depth


@pytest.mark.parametrize("depth", [0, 3])
def test_other_numbers_of_steps_are_refused(depth: int) -> None:
    with pytest.raises(ConfigError, match=f"pipeline_depth is {depth}"):
        EngineConfig(pipeline_depth=depth)
