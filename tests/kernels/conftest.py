"""Fixtures of the kernel tests."""

import pytest
import torch

from limelight.kernels.reference import ReferenceKernels


@pytest.fixture
def kernels() -> ReferenceKernels:
    return ReferenceKernels(torch.device("cpu"))
