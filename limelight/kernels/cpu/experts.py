"""Mixture of experts: which experts a row takes, and the sum of what they give."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limelight.kernels.cpu.elementwise import activation_number
from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.recorder import Recorder, RowCount, Value
from limelight.kernels.interface import ExpertWeights, StoredTensor

ROUTE = Function("record_route", "pppppiiii")
GROUP_ROWS = Function("record_group_rows", "pppppppii")
ROWS_AT_ONCE = Function("experts_rows_at_once", "")
GATE_UP = Function("record_experts_gate_up", "ppppppppiiiif")
DOWN = Function("record_experts_down", "pppppppii")
ADD_SHARES = Function("record_add_shares", "ppppppii")
TILE_WIDTH = 3


class PackedExperts(NamedTuple):
    """Experts in float32, as `ExpertWeights` has them; `activation` is a number of `csrc/gate.h`."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
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


def pack_experts(library: Library, weights: ExpertWeights) -> PackedExperts:
    """See `Kernels`."""
    biases = [_exact(bias) for bias in (weights.gate_bias, weights.up_bias) if bias is not None]
    return PackedExperts(
        torch.cat((_exact(weights.read_gate()), _exact(weights.read_up())), 1),
        _exact(weights.read_down()),
        torch.cat(biases, 1) if biases else None,
        None if weights.down_bias is None else _exact(weights.down_bias),
        activation_number(weights.activation, weights.limit),
        0.0 if weights.limit is None else weights.limit,
    )


def experts(recorder: Recorder, inputs: Value, chosen: Value, shares: Value, packed: PackedExperts) -> Value:
    """See `Kernels`; `chosen` is int32."""
    num_chosen = chosen.width
    num_experts, num_outputs, num_inner = packed.down.shape
    largest = inputs.rows.largest * num_chosen
    counts = np.zeros(2, np.int32)
    places = RowCount(counts[:1], largest)
    max_tiles = largest // recorder.library.call_long(ROWS_AT_ONCE) + min(num_experts, largest)
    tiles = recorder.value(RowCount(counts[1:], max_tiles), TILE_WIDTH, np.int32)
    choices, place_of_choice = recorder.value(places, 1, np.int32), recorder.value(places, 1, np.int32)
    recorder.append(GROUP_ROWS, inputs.rows, chosen, choices, place_of_choice, tiles, counts, num_chosen, num_experts)
    gated, values = recorder.value(places, num_inner), recorder.value(places, num_outputs)
    recorder.append(
        GATE_UP, counts, tiles, choices, inputs, packed.gate_up, packed.gate_up_bias, gated, num_chosen, inputs.width,
        num_inner, packed.activation, packed.limit,
    )  # fmt: skip
    recorder.append(DOWN, counts, tiles, gated, packed.down, packed.down_bias, values, num_inner, num_outputs)
    sums = recorder.value(inputs.rows, num_outputs)
    recorder.append(ADD_SHARES, inputs.rows, place_of_choice, shares, values, sums, num_chosen, num_outputs)
    return sums


def _exact(tensor: Tensor | StoredTensor) -> Tensor:
    assert isinstance(tensor, Tensor), "no format is taken as it is stored"
    return tensor.detach().to(torch.float32).contiguous()
