"""For the address sanitizer: each value of a program gets memory of its own, so that a load or store beyond its end is
one beyond what was allocated.
"""

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.recorder import ALIGNMENT, Program, Recorder, Value

Finished = tuple[Program, dict[Value, NDArray[Any]]]


def finish_apart(finish: Callable[[Recorder], Finished]) -> Callable[[Recorder], Finished]:
    """`Recorder.finish`, done so."""

    def finish_with_values_apart(recorder: Recorder) -> Finished:
        arguments = (argument for operation in recorder._operations for argument in operation.arguments)
        values = [argument for argument in arguments if isinstance(argument, Value)]
        for value in [*values, *recorder._results]:
            if value.memory is None:
                value.memory = _allocated(value.num_bytes).view(value.dtype).reshape(value.rows.largest, value.width)
        program, results = finish(recorder)
        return program, {value: value.memory for value in results if value.memory is not None}

    return finish_with_values_apart


def _allocated(num_bytes: int) -> NDArray[np.uint8]:
    """From the function of C that the sanitizer watches, which tells the end to the byte."""
    process = ctypes.CDLL(None)
    process.memalign.restype = ctypes.c_void_p
    address = process.memalign(ctypes.c_size_t(ALIGNMENT), ctypes.c_size_t(max(num_bytes, 1)))
    memory = (ctypes.c_uint8 * num_bytes).from_address(address)
    weakref.finalize(memory, process.free, ctypes.c_void_p(address))
    return np.frombuffer(memory, np.uint8)
