"""Kernels for NVIDIA GPUs, in Triton: everything of a step but the products of matrices, which are cuBLAS's.

A step runs on buffers of fixed size (`step_memory.py`), so that it can be captured as a CUDA graph and replayed.
"""
