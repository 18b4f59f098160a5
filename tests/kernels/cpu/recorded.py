"""Records a few operations, runs them, and gives back what they computed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.library import Function, Library
from limelight.kernels.cpu.recorder import Argument, Recorder, RowCount, Value
from limelight.kernels.cpu.threads import ThreadPool


def row_count(num_rows: int, largest: int | None = None) -> RowCount:
    """A count of `num_rows`; `largest` is what memory is set aside for (more than needed, so that counts are read)."""
    return RowCount(np.array([num_rows], np.int32), num_rows + 3 if largest is None else largest)


def run_recorded(
    library: Library, record: Callable[[Recorder], Sequence[Value]], pool: ThreadPool | None = None
) -> list[NDArray[Any]]:
    """Record with `record`, run, and give back the rows of the values that it returned."""
    recorder = Recorder(library)
    values = record(recorder)
    for value in values:
        if value.memory is None:
            recorder.keep(value)
    program, memory = recorder.finish()
    program.run(pool)
    results = []
    for value in values:
        rows = memory[value] if value.memory is None else value.memory.reshape(value.rows.largest, -1)
        results.append(rows[: int(value.rows.counter[0])].copy())
    return results


def run_operation(
    library: Library, function: Function, *arguments: Argument, pool: ThreadPool | None = None
) -> list[NDArray[Any]]:
    """Run one operation alone; gives back the rows of its arguments that are values, in their order."""

    def record(recorder: Recorder) -> list[Value]:
        recorder.append(function, *arguments)
        return list(dict.fromkeys(argument for argument in arguments if isinstance(argument, Value)))

    return run_recorded(library, record, pool)
