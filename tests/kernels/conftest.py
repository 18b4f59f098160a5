"""Fixtures of the kernel tests."""

import pytest

from limelight.kernels.reference import ReferenceKernels


@pytest.fixture
def kernels() -> ReferenceKernels:
    return ReferenceKernels("cpu")
