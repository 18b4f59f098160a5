"""Every family through a recorded pass of the kernels in C, against transformers: in float32 throughout, logits within
`agreement.TOLERANCE` in prompts, chunks and decoding, and equal greedy tokens.
"""

from pathlib import Path

import pytest

from limelight.models.checkpoint import Checkpoint
from tests.models.families.agreement import assert_agrees
from tests.models.families.tiny_families import TINY_FAMILIES
from tests.models.tiny_models import Rig, c_kernels, saved

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def rig_in_c(checkpoint: Checkpoint) -> Rig:
    return Rig(checkpoint, kernels=c_kernels())


@pytest.mark.parametrize("architecture", TINY_FAMILIES)
def test_families_agree_with_transformers(architecture: str, tmp_path: Path) -> None:
    model = TINY_FAMILIES[architecture]()
    assert_agrees(model, saved(model, tmp_path), rig_in_c)
