"""Mixture of experts: which experts a row takes, and their sum."""

import numpy as np

from limelight.kernels.cpu.library import Function
from limelight.kernels.cpu.recorder import Recorder, Value

ROUTE = Function("record_route", "pppppiiii")


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
