"""Operations that treat each row, or each number, for itself: norms, gates, rows picked out, the cap of the logits."""

from limelight.kernels.cpu.arrays import exact
from limelight.kernels.cpu.library import Function
from limelight.kernels.cpu.recorder import Recorder, Value
from limelight.kernels.interface import Numbers

ADD_NORM = Function("record_add_norm", "pppppppif")
GATE = Function("record_gate", "pppppiif")
ADD_GATED = Function("record_add_gated", "pppppi")
SELECT_ROWS = Function("record_select_rows", "pppppl")
SOFT_CAP = Function("record_soft_cap", "pppif")
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
LIMITED = 3
"""Number of gpt-oss's gate, as those of `ACTIVATIONS` are: `csrc/gate.h`."""


def add_norm(
    recorder: Recorder, hidden: Value, residual: Value | None, weight: Numbers, epsilon: float
) -> tuple[Value, Value]:
    """RMSNorm of `hidden + residual`; the sum lies where `residual` was, or is `hidden` if there is none."""
    normed = recorder.value(hidden.rows, hidden.width)
    operation = recorder.append(
        ADD_NORM, hidden.rows, hidden, residual, exact(weight), normed, None, hidden.width, epsilon
    )
    recorder.can_quantize(normed, operation, 5)
    return normed, hidden if residual is None else residual


def gate(recorder: Recorder, gate_up: Value, activation: str, limit: float | None) -> Value:
    """activation(first half) * second half."""
    outputs = recorder.value(gate_up.rows, gate_up.width // 2)
    number = activation_number(activation, limit)
    operation = recorder.append(
        GATE, gate_up.rows, gate_up, outputs, None, outputs.width, number, 0.0 if limit is None else limit
    )
    recorder.can_quantize(outputs, operation, 3)
    return outputs


def activation_number(activation: str, limit: float | None) -> int:
    """What `csrc/gate.h` calls the activation.

    Raises:
        ValueError: there is no such activation.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation] if limit is None else LIMITED


def add_gated(recorder: Recorder, outputs: Value, scores: Value, values: Value) -> Value:
    """`outputs` + sigmoid(`scores`) * `values`, where `outputs` was."""
    recorder.append(ADD_GATED, outputs.rows, outputs, scores, values, outputs.width)
    return outputs


def select_rows(recorder: Recorder, values: Value, rows: Value) -> Value:
    """Rows number `rows` (int32) of `values`."""
    chosen = recorder.value(rows.rows, values.width, values.dtype)
    recorder.append(SELECT_ROWS, rows.rows, values, rows, chosen, values.width * values.dtype.itemsize)
    return chosen


def logits(recorder: Recorder, values: Value, soft_cap: float | None) -> Value:
    """`values` themselves, capped where they lie if there is a cap."""
    if soft_cap is not None:
        recorder.append(SOFT_CAP, values.rows, values, values.width, soft_cap)
    return values
