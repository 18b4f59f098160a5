"""The page tensors of every layer: sized from the model's shape, allocated and laid out by the kernels."""

from typing import Any

from limelight.errors import ConfigError
from limelight.kernels.interface import Kernels, KVLayout
from limelight.models.spec import ModelOutline


def kv_layout(spec: ModelOutline, num_pages: int, page_size: int, dtype: str) -> KVLayout:
    """Shape of the pool for a model: one page group, all layers alike."""
    return KVLayout(
        num_layers=spec.num_layers,
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=dtype,
    )


def allocate_kv_cache(kernels: Kernels, layout: KVLayout) -> Any:
    """The pool, as the kernels want it; opaque.

    Raises:
        ConfigError: the kernels do not take pages of this size.
    """
    if layout.page_size not in kernels.page_sizes:
        sizes = ", ".join(str(size) for size in kernels.page_sizes)
        raise ConfigError(f"page_size is {layout.page_size}; on {kernels.device} use one of {sizes}")
    return kernels.allocate_kv(layout)
