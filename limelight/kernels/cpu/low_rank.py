"""Low-rank additions to projections in a recorded pass (LoRA): which adapters and whose rows is read at each run.

A pass is recorded once, and adapters come and go between its runs. So `AdapterBuffers` says what a step has, at fixed
addresses: for each projection a pointer per active adapter, and for each row the number of its adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.library import Function
from limelight.kernels.cpu.recorder import Recorder, RowCount, Value
from limelight.kernels.interface import LowRank, LowRankRows

if TYPE_CHECKING:
    from torch import Tensor

RECORD = Function("record_low_rank", "ppppppppiii")
NO_ADAPTER = -1


class PackedProduct(NamedTuple):
    """A `LowRank` as the C code reads it.

    Attributes:
        description: int64, `Product` of `csrc/low_rank.c`.
        rank: sum of those of the parts.
        kept: the matrices that it points to.
    """

    description: NDArray[np.int64]
    rank: int
    kept: list[Tensor]


class PackedAdapter(NamedTuple):
    """An adapter's products by projection.

    Attributes:
        pointers: int64 [projections], 0 for those that it leaves alone.
        products: what they point to.
    """

    pointers: NDArray[np.int64]
    products: list[PackedProduct]


class AdapterBuffers:
    """The adapters of a step: fixed addresses, new contents at each step.

    Attributes:
        num_active: int32 [1], adapters of the step; 0 lets the operations do nothing.
        products: int64 [projections, adapters], addresses of `PackedProduct.description`; 0: nothing is added.
        row_adapters, sampled_adapters: int32 [tokens] and [sampled], for each row the number of its adapter among the
            active ones, or `NO_ADAPTER`.
    """

    def __init__(self, ranks: Mapping[str, int], max_active: int, num_tokens: int, num_sampled: int) -> None:
        """Buffers for steps of at most so many adapters and rows.

        Args:
            ranks: by the name of a projection that adapters can change, the largest sum of ranks of one.
        """
        self._ranks = dict(ranks)
        self._index = {name: index for index, name in enumerate(self._ranks)}
        self.num_active = np.zeros(1, np.int32)
        self.products = np.zeros((len(self._ranks), max_active), np.int64)
        self.row_adapters = np.full(num_tokens, NO_ADAPTER, np.int32)
        self.sampled_adapters = np.full(num_sampled, NO_ADAPTER, np.int32)

    def pack(self, products: Mapping[str, LowRank]) -> PackedAdapter:
        """An adapter as `activate` takes it; it holds what it points to."""
        pointers = np.zeros(len(self._ranks), np.int64)
        packed = []
        for name, product in products.items():
            one = pack_product(product)
            assert one.rank <= self._ranks[name], "adapters of larger ranks are refused when they are read"
            pointers[self._index[name]] = one.description.ctypes.data
            packed.append(one)
        return PackedAdapter(pointers, packed)

    def activate(self, adapters: Sequence[PackedAdapter]) -> None:
        """The adapters of the next run, by the numbers that rows name them with. They live until it has ended."""
        for number, adapter in enumerate(adapters):
            self.products[:, number] = adapter.pointers
        self.num_active[0] = len(adapters)

    def record(
        self, recorder: Recorder, projection: str, row_adapters: NDArray[np.int32], outputs: Value, inputs: Value
    ) -> None:
        """Record adding what the adapters give for `inputs` to `outputs`, in place."""
        products = self.products[self._index[projection]]
        _record(recorder, outputs, inputs, self.num_active, row_adapters, products, self._ranks[projection])


def pack_product(product: LowRank) -> PackedProduct:
    """Matrices in float32 or bfloat16 are shared where `up` lies in memory with its outputs side by side (the transpose
    of a contiguous matrix); others are copied.
    """
    import torch  # which whoever has adapters has imported

    narrow = product.down.dtype == torch.bfloat16
    dtype = torch.bfloat16 if narrow else torch.float32
    down = product.down.to(dtype).contiguous()
    ups = [part.up.T.to(dtype).contiguous() for part in product.parts]
    description = [down.data_ptr(), int(narrow), down.shape[0], len(ups)]
    for part, up in zip(product.parts, ups, strict=True):
        description += [up.data_ptr(), part.first_output, up.shape[1], up.shape[0]]
    return PackedProduct(np.array(description, np.int64), down.shape[0], [down, *ups])


def add_low_rank(recorder: Recorder, outputs: Value, inputs: Value, additions: Sequence[LowRankRows]) -> None:
    """Additions that are the same at each run."""
    for addition in additions:
        packed = pack_product(addition.product)
        adapters = np.full(outputs.rows.largest, 0 if addition.rows is None else NO_ADAPTER, np.int32)
        if addition.rows is not None:
            adapters[addition.rows.numpy()] = 0
        pointers = np.array([packed.description.ctypes.data], np.int64)
        _record(recorder, outputs, inputs, np.ones(1, np.int32), adapters, pointers, packed.rank)
        recorder.keep_alive(packed)


def _record(
    recorder: Recorder,
    outputs: Value,
    inputs: Value,
    num_active: NDArray[np.int32],
    row_adapters: NDArray[np.int32],
    products: NDArray[np.int64],
    rank: int,
) -> None:
    assert outputs.quantized is None, "the outputs were quantised before all was added to them"
    outputs.quantizer = None
    rows: RowCount = outputs.rows
    inner = recorder.value(rows, rank)
    recorder.append(
        RECORD, rows, num_active, row_adapters, products, inputs, inner, outputs, inputs.width, rank, outputs.width
    )  # fmt: skip
