"""Mixture of experts: which experts a row takes, and the sum of what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.arrays import exact
from limelight.kernels.cpu.elementwise import activation_number
from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.packing import FORMATS, format_of_weight, is_float, pack_matrix, packed_bytes
from limelight.kernels.cpu.recorder import Recorder, RowCount, Value
from limelight.kernels.cpu.weight_memory import WeightMemory, aligned
from limelight.kernels.interface import ExpertWeights, Numbers, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

ROUTE = Function("record_route", "pppppiiii")
GROUP_ROWS = Function("record_group_rows", "pppppppii")
PLACES_AT_ONCE = Function("experts_places_at_once", "")
GATHER = Function("record_experts_gather", "ppppppli")
GATE_UP = Function("record_experts_gate_up", "pppp" + "ppl" * 2 + "pppiif")
DOWN = Function("record_experts_down", "ppppppl")
ADD_SHARES = Function("record_add_shares", "ppppppii")
GROUP_WIDTH = 3
"""Numbers of a `Group` of `csrc/experts.h`."""


class PackedMatrices(NamedTuple):
    """A matrix of each expert, in one format.

    Attributes:
        memory: [experts, bytes]: panels of `csrc/formats.h`, each expert's aligned.
        bias: float32 [experts, num_outputs] or None.
    """

    memory: NDArray[np.uint8]
    bias: NDArray[np.float32] | None
    format: str
    num_inputs: int
    num_outputs: int

    def description(self) -> NDArray[np.int64]:
        """As `Matrices` of `csrc/experts.c`; for as long as the memory lives."""
        addresses = self.memory.ctypes.data, 0 if self.bias is None else self.bias.ctypes.data
        number = FORMATS[self.format].number
        return np.array([*addresses, self.memory.shape[1], number, self.num_inputs, self.num_outputs], np.int64)


class PackedExperts(NamedTuple):
    """See `pack_experts`; `activation` is a number of `csrc/gate.h`."""

    gate: PackedMatrices
    up: PackedMatrices
    down: PackedMatrices
    activation: int
    limit: float


def route(
    recorder: Recorder, scores: Value, num_chosen: int, *, chosen_first: bool, normalize: bool
) -> tuple[Value, Value]:
    """See `Kernels`; the numbers of the chosen experts are int32."""
    chosen = recorder.value(scores.rows, num_chosen, np.int32)
    shares = recorder.value(scores.rows, num_chosen)
    recorder.append(
        ROUTE, scores.rows, scores, chosen, shares, scores.width, num_chosen, int(chosen_first), int(normalize)
    )
    return chosen, shares


def pack_experts(library: Library, weights: ExpertWeights, weight_memory: WeightMemory | None = None) -> PackedExperts:
    """Each expert's matrices as `pack_linear` packs them.

    Args:
        weight_memory: as in `pack_linear`.
    """
    weight_memory = weight_memory or WeightMemory()
    return PackedExperts(
        _pack(library, weights.read_gate(), weights.gate_bias, weight_memory),
        _pack(library, weights.read_up(), weights.up_bias, weight_memory),
        _pack(library, weights.read_down(), weights.down_bias, weight_memory),
        activation_number(weights.activation, weights.limit),
        0.0 if weights.limit is None else weights.limit,
    )


def experts(recorder: Recorder, inputs: Value, chosen: Value, shares: Value, packed: PackedExperts) -> Value:
    """See `Kernels`; `chosen` is int32."""
    num_chosen, num_experts = chosen.width, len(packed.down.memory)
    largest = inputs.rows.largest * num_chosen
    counts = np.zeros(2, np.int32)
    places = RowCount(counts[:1], largest)
    max_groups = largest // recorder.library.call_long(PLACES_AT_ONCE) + min(num_experts, largest)
    groups = recorder.value(RowCount(counts[1:], max_groups), GROUP_WIDTH, np.int32)
    choices, place_of_choice = recorder.value(places, 1, np.int32), recorder.value(places, 1, np.int32)
    recorder.append(GROUP_ROWS, inputs.rows, chosen, choices, place_of_choice, groups, counts, num_chosen, num_experts)
    chosen_rows = {
        plain: _gather(recorder, inputs if plain else recorder.quantized(inputs), counts, places, groups, choices)
        for plain in sorted({is_float(packed.gate.format), is_float(packed.up.format)})
    }
    gate_rows, up_rows = (chosen_rows[is_float(matrices.format)] for matrices in (packed.gate, packed.up))
    gated = recorder.value(places, packed.gate.num_outputs)
    recorder.append(
        GATE_UP, counts, groups, choices, *gate_rows, *up_rows, packed.gate.description(), packed.up.description(),
        gated, num_chosen, packed.activation, packed.limit,
    )  # fmt: skip
    rows = gated if is_float(packed.down.format) else recorder.quantized(gated)
    outputs = recorder.value(places, packed.down.num_outputs)
    recorder.append(DOWN, counts, groups, rows, packed.down.description(), outputs, _row_bytes(rows))
    sums = recorder.value(inputs.rows, outputs.width)
    recorder.append(ADD_SHARES, inputs.rows, place_of_choice, shares, outputs, sums, num_chosen, outputs.width)
    recorder.keep_alive(packed)
    return sums


def _gather(
    recorder: Recorder, rows: Value, counts: NDArray[np.int32], places: RowCount, groups: Value, choices: Value
) -> tuple[Value, Value, int]:
    """`ChosenRows` of `csrc/experts.h`."""
    gathered = recorder.value(places, rows.width, rows.dtype)
    num_chosen = places.largest // rows.rows.largest
    recorder.append(GATHER, counts, groups, choices, rows, gathered, _row_bytes(rows), num_chosen)
    return rows, gathered, _row_bytes(rows)


def _pack(
    library: Library, weight: Tensor | StoredTensor, bias: Numbers | None, weight_memory: WeightMemory
) -> PackedMatrices:
    num_experts, num_outputs, num_inputs = weight.shape
    name = format_of_weight(weight)
    num_bytes = aligned(packed_bytes((num_outputs, num_inputs), name))
    memory = weight_memory.allocate(num_experts * num_bytes).reshape(num_experts, num_bytes)
    for expert, panels in enumerate(memory):
        pack_matrix(library, [_matrix_of(weight, expert)], panels)
    return PackedMatrices(memory, None if bias is None else exact(bias), name, num_inputs, num_outputs)


def _matrix_of(weight: Tensor | StoredTensor, expert: int) -> Tensor | StoredTensor:
    if not isinstance(weight, StoredTensor):
        return weight[expert]
    shape = weight.shape[1:]
    return StoredTensor(weight.format, shape, weight.rows[expert].reshape(shape[0], -1))


def _row_bytes(rows: Value) -> int:
    return rows.width * rows.dtype.itemsize
