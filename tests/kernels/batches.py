"""Random tensors, pools full of NaN, and chunks laid out over pages in random order."""

import numpy as np
import torch

from limelight.kernels.interface import AttentionBatch, KVLayout
from limelight.kernels.reference import ReferenceKernels, ReferenceKV
from limelight.kernels.torch_dtypes import name_of

PAGE_SIZE = 8
NUM_PAGES = 40


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(ours: torch.Tensor, expected: np.ndarray | torch.Tensor, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(ours.numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


def pool(kernels: ReferenceKernels, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> ReferenceKV:
    """A pool full of NaN."""
    layout = KVLayout(
        num_layers=2,
        num_pages=NUM_PAGES,
        page_size=PAGE_SIZE,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=name_of(dtype),
    )
    kv = kernels.allocate_kv(layout)
    for layer in kv.layers:
        layer.fill_(torch.nan)
    return kv


def batch_of(chunks: list[tuple[int, int]], seed: int = 0) -> AttentionBatch:
    """Chunks of (rows, context), on pages in random order; unused entries of the page table are 0."""
    pages = iter(np.random.default_rng(seed).permutation(NUM_PAGES).tolist())
    tables = [[next(pages) for _ in range(-(-context // PAGE_SIZE))] for _, context in chunks]
    longest = max(map(len, tables)) + 1
    positions = [position for rows, context in chunks for position in range(context - rows, context)]
    owners = [index for index, (rows, _) in enumerate(chunks) for _ in range(rows)]
    slots = [
        tables[owner][position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        for owner, position in zip(owners, positions, strict=True)
    ]
    return AttentionBatch(
        page_table=torch.tensor([table + [0] * (longest - len(table)) for table in tables], dtype=torch.int32),
        query_starts=torch.tensor(np.cumsum([0] + [rows for rows, _ in chunks]), dtype=torch.int32),
        context_lens=torch.tensor([context for _, context in chunks], dtype=torch.int32),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
    )
