"""Triton's kernels for a GPU of this machine."""

from limelight.kernels.step_kernels import StepKernels
from limelight.kernels.triton.attention import Processor
from limelight.kernels.triton.kernels import TritonKernels


def triton_kernels(device: str) -> StepKernels:
    """Kernels for `device`, as torch names it, by what it can do."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    return TritonKernels(device, Processor(capability=10 * major + minor, num_processors=num_processors))
