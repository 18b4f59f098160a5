"""The variants that the tests run, compiled as the machine needs them."""

import os
from pathlib import Path

from limelight.kernels.cpu.build import build
from limelight.kernels.cpu.features import runnable_variants
from limelight.kernels.cpu.library import Library

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "limelight" / "kernels"
VARIANTS = runnable_variants()


def load(variant: str) -> Library:
    return Library(variant, build(variant, FOLDER))
