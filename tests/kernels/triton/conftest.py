"""Kernels in Triton run in its interpreter here, on tensors of the CPU."""

import os

os.environ["TRITON_INTERPRET"] = "1"
