"""How much of a GPU Limelight takes, and what to change where that is too little. Pure arithmetic."""

import math

import msgspec

from limelight.kernels.device import DeviceMemory
from limelight.models.wording import as_size

MOST_UTILIZATION = 0.97
"""A share that is not advised to be passed: drivers and libraries want something later on, too."""
FP8_SHARE, INT4_SHARE = 0.5, 0.29
"""Of matrices in 16 bits, what is left of them."""


class GpuBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a GPU.

    Attributes:
        others: held before anything of ours was there: other programs, and the driver's own part of this one.
        utilization: share of the rest that is ours.
    """

    total: int
    others: int
    utilization: float

    @staticmethod
    def of(memory: DeviceMemory, utilization: float) -> "GpuBudget":
        """From what a device says before the weights are loaded."""
        others = max(memory.total - memory.free - memory.own, 0)
        return GpuBudget(total=memory.total, others=others, utilization=utilization)

    @property
    def ours(self) -> int:
        """What may be taken, everything included."""
        return int(self.utilization * (self.total - self.others))


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed at least, in bytes, and the settings that it follows from.

    Attributes:
        kv: of the smallest pool that the settings allow: of a page, or of `max_model_len` where that was set.
        quantized: weights are in fewer than 16 bits already, or cannot be.
    """

    weights: int
    working: int
    graphs: int
    buffers: int
    kv: int
    page_bytes: int
    page_size: int
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_bytes: int | None
    quantized: bool

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.working + self.graphs + self.buffers + self.kv

    def told(self, budget: GpuBudget) -> str:
        """For people, in one line as errors are."""
        parts = (
            ("weights", self.weights),
            ("one step", self.working),
            ("CUDA graphs", self.graphs),
            ("seats", self.buffers),
            ("KV cache", self.kv),
            ("together", self.total),
            ("there is", budget.ours),
            ("others hold", budget.others),
        )
        return ", ".join(f"{label} {as_size(size)}" for label, size in parts if size)


def smallest_change(needs: Needs, budget: GpuBudget) -> str:
    """The setting whose change costs least and is enough alone; what is lacking, where none is."""
    lacking = needs.total - budget.ours
    for change in (_more_of_it, _smaller_pool, _fewer_rows, _no_graphs, _fewer_seats, _smaller_weights):
        advice = change(needs, budget, lacking)
        if advice is not None:
            return advice
    return f"free {as_size(lacking)} more, or choose a smaller model"


def _more_of_it(needs: Needs, budget: GpuBudget, _lacking: int) -> str | None:
    there_is = budget.total - budget.others
    if needs.total > MOST_UTILIZATION * there_is:
        return None
    return f"set gpu_memory_utilization to at least {math.ceil(needs.total / there_is * 100) / 100:.2f}"


def _smaller_pool(needs: Needs, budget: GpuBudget, _lacking: int) -> str | None:
    num_pages = (budget.ours - (needs.total - needs.kv)) // needs.page_bytes
    if num_pages < 1:
        return None
    if needs.kv_cache_bytes is not None:
        return f"set kv_cache_bytes to at most {num_pages * needs.page_bytes:,}"
    return f"set max_model_len to at most {num_pages * needs.page_size:,}"


def _fewer_rows(needs: Needs, _budget: GpuBudget, lacking: int) -> str | None:
    """What a step takes grows with its rows; a tenth less than that leaves room for what does not."""
    if needs.working <= lacking:
        return None
    fewer = int(needs.max_num_batched_tokens * (1 - lacking / needs.working) * 0.9)
    return f"set max_num_batched_tokens to at most {fewer:,}" if fewer >= needs.max_num_seqs else None


def _no_graphs(needs: Needs, _budget: GpuBudget, lacking: int) -> str | None:
    return "set enable_cuda_graph to false" if needs.graphs >= lacking else None


def _fewer_seats(needs: Needs, _budget: GpuBudget, lacking: int) -> str | None:
    fewer = int(needs.max_num_seqs * (1 - lacking / needs.buffers)) if needs.buffers else 0
    return f"set max_num_seqs to at most {fewer:,}" if fewer >= 1 else None


def _smaller_weights(needs: Needs, _budget: GpuBudget, lacking: int) -> str | None:
    for name, share in (("fp8", FP8_SHARE), ("int4", INT4_SHARE)):
        if not needs.quantized and needs.weights * (1 - share) >= lacking:
            return f'set quantize to "{name}"'
    return None
