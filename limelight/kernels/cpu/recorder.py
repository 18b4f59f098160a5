"""Records operations over values that have no memory yet, then gives them memory and binds the C program.

A value is rows of a step: [rows, width], with the number of rows known only when the program runs. A value's memory is
free again after the last operation that names it, and the next value may lie there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from limelight.kernels.cpu.library import Allocated, Function, Library
from limelight.kernels.cpu.threads import ThreadPool

ALIGNMENT = 64
NEW = Function("program_new", "")
FREE = Function("program_free", "p")
RUN = Function("program_run", "pp")
RUN_PART = Function("program_run_part", "ppii")
NUM_OPERATIONS = Function("program_num_operations", "p")
OPERATION_NAME = Function("program_operation_name", "pi")
PROFILE = Function("program_profile", "ppp")
QUANTIZE = Function("record_quantize", "ppppi")
QUANTIZED_ROW_BYTES = Function("quantized_row_bytes", "i")


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows values have: `counter` is one int32, read while the program runs, never above `largest`."""

    counter: NDArray[np.int32]
    largest: int


@dataclass(eq=False, slots=True)
class Value:
    """Rows of a step, [rows, width] of `dtype`.

    Attributes:
        memory: where the value lies, for one that is filled or read outside of the pass; None: it gets a place.
    """

    rows: RowCount
    width: int
    dtype: np.dtype[Any]
    memory: NDArray[Any] | None = None
    quantized: "Value | None" = None
    quantizer: "tuple[Operation, int] | None" = None

    @property
    def num_bytes(self) -> int:
        """Memory that it takes at most."""
        return self.rows.largest * self.width * self.dtype.itemsize


Argument = Value | RowCount | NDArray[Any] | int | float | None


@dataclass(eq=False, slots=True)
class Operation:
    """A C function that appends to a program, and what it is called with behind the program, its first argument."""

    function: Function
    arguments: list[Argument]


class Program:
    """A recorded pass.

    Attributes:
        memory: where the values lie.
        split: number of the operation at which the second part begins (`Recorder.split`).
        kept: what the operations point to; lives as long as the program does.
    """

    def __init__(self, library: Library, memory: NDArray[np.uint8]) -> None:
        """A program without operations.

        Raises:
            MemoryError: there is not enough.
        """
        self.library = library
        self.memory = memory
        self.split = 0
        self.kept: list[Any] = []
        self.handle = library.call_long(NEW)
        if not self.handle:
            raise MemoryError("a program cannot be allocated")
        self._allocated = Allocated(library, FREE, self.handle)

    def run(self, pool: ThreadPool | None = None) -> None:
        """Run all operations, on the threads of `pool` or on this one alone.

        Raises:
            MemoryError: the working memory of the threads cannot be had.
        """
        if self.library.call(RUN, self.handle, pool.handle if pool else None):
            raise MemoryError("the working memory of a step cannot be allocated")

    def run_first_part(self, pool: ThreadPool | None = None) -> None:
        """Run the operations before the split.

        Raises:
            MemoryError: as `run`.
        """
        self._run_part(pool, 0, self.split)

    def run_second_part(self, pool: ThreadPool | None = None) -> None:
        """Run those behind it; the values that the first part left must still be there.

        Raises:
            MemoryError: as `run`.
        """
        self._run_part(pool, self.split, self.library.call(NUM_OPERATIONS, self.handle))

    def _run_part(self, pool: ThreadPool | None, first: int, end: int) -> None:
        if self.library.call(RUN_PART, self.handle, pool.handle if pool else None, first, end):
            raise MemoryError("the working memory of a step cannot be allocated")

    def profile(self, pool: ThreadPool | None = None) -> list[tuple[str, float]]:
        """Run once; name of each operation in order, and the seconds that it took.

        Raises:
            MemoryError: as `run`.
        """
        seconds = np.zeros(self.library.call(NUM_OPERATIONS, self.handle), np.float64)
        if self.library.call(PROFILE, self.handle, pool.handle if pool else None, seconds.ctypes.data):
            raise MemoryError("the working memory of a step cannot be allocated")
        names = (self.library.call_text(OPERATION_NAME, self.handle, index) for index in range(len(seconds)))
        return list(zip(names, seconds.tolist(), strict=True))


class Recorder:
    """Collects operations in order; `finish` makes the program."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._operations: list[Operation] = []
        self._num_first = 0
        self._results: list[Value] = []
        self._kept: list[Any] = []

    def value(self, rows: RowCount, width: int, dtype: DTypeLike = np.float32) -> Value:
        """A value that a later operation fills."""
        return Value(rows, width, np.dtype(dtype))

    def append(self, function: Function, *arguments: Argument) -> Operation:
        """Record a call. Arrays are kept alive; None is NULL."""
        operation = Operation(function, list(arguments))
        self._operations.append(operation)
        return operation

    def split(self) -> None:
        """Let the program's second part begin with the next operation: the two can be run one by one."""
        self._num_first = len(self._operations)

    def can_quantize(self, value: Value, operation: Operation, argument: int) -> None:
        """Say that `operation`, which fills `value`, fills its quantised rows too if argument number `argument` (now
        None) points to memory for them.
        """
        value.quantizer = (operation, argument)

    def quantized(self, value: Value) -> Value:
        """The rows of `value` as int8 (`quantize.h`), made by whoever makes `value` or by an operation of their own."""
        if value.quantized is None:
            row_bytes = self.library.call_long(QUANTIZED_ROW_BYTES, value.width)
            value.quantized = self.value(value.rows, row_bytes, np.uint8)
            if value.quantizer is None:
                self.append(QUANTIZE, value.rows, value, value.quantized, value.width)
            else:
                operation, argument = value.quantizer
                operation.arguments[argument] = value.quantized
        return value.quantized

    def keep(self, value: Value) -> None:
        """Give `value` memory that no other value shares: it can be read after a run."""
        self._results.append(value)

    def keep_alive(self, pointed_to: Any) -> None:
        """Let the program hold what its arguments point to by way of addresses in memory."""
        self._kept.append(pointed_to)

    @property
    def num_bytes(self) -> int:
        """Memory that the values need."""
        return _places(self._operations, self._results)[1] + ALIGNMENT

    def finish(self, memory: NDArray[np.uint8] | None = None) -> "tuple[Program, dict[Value, NDArray[Any]]]":
        """The program, and the memory of the values that were kept, [largest rows, width] each.

        Args:
            memory: where the values lie if it is large enough: of a program that never runs at the same time.

        Raises:
            MemoryError: there is not enough.
        """
        places, num_bytes = _places(self._operations, self._results)
        if memory is None or len(memory) < num_bytes + ALIGNMENT:
            # Uninitialised: what no step reaches is never committed.
            memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
        base = memory.ctypes.data + -memory.ctypes.data % ALIGNMENT
        program = Program(self.library, memory)
        program.kept += self._kept
        for number, operation in enumerate(self._operations):
            if number == self._num_first:
                program.split = self.library.call(NUM_OPERATIONS, program.handle)
            arguments = [_bound(argument, places, base, program.kept) for argument in operation.arguments]
            if self.library.call(operation.function, program.handle, *arguments):
                raise MemoryError("a program cannot be allocated")
        results = {}
        for value in self._results:
            start = base - memory.ctypes.data + places[value]
            flat = memory[start : start + value.num_bytes].view(value.dtype)
            results[value] = flat.reshape(value.rows.largest, value.width)
        return program, results


def bound(rows: RowCount, memory: NDArray[Any]) -> Value:
    """A value that lies in `memory`, [largest rows] or [largest rows, width]."""
    return Value(rows, memory.size // rows.largest, memory.dtype, memory)


def _bound(argument: Argument, places: dict[Value, int], base: int, kept: list[Any]) -> int | float | None:
    if isinstance(argument, Value):
        if argument.memory is None:
            return base + places[argument]
        argument = argument.memory
    if isinstance(argument, RowCount):
        kept.append(argument.counter)
        return int(argument.counter.ctypes.data)
    if isinstance(argument, np.ndarray):
        kept.append(argument)
        return int(argument.ctypes.data)
    return argument


def _places(operations: Iterable[Operation], results: Iterable[Value]) -> tuple[dict[Value, int], int]:
    """Offset of each value in one piece of memory, and its size: first fit, by order of appearance."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    index = 0
    for index, operation in enumerate(operations):
        for argument in operation.arguments:
            if isinstance(argument, Value) and argument.memory is None:
                first.setdefault(argument, index)
                last[argument] = index
    for value in results:
        first[value] = 0
        last[value] = index + 1
    places: dict[Value, int] = {}
    alive: list[Value] = []
    num_bytes = 0
    for value in sorted(first, key=first.__getitem__):
        alive = [other for other in alive if last[other] >= first[value]]
        start = 0
        for other in sorted(alive, key=places.__getitem__):
            if places[other] - start >= _size(value):
                break
            start = max(start, places[other] + _size(other))
        places[value] = start
        alive.append(value)
        num_bytes = max(num_bytes, start + _size(value))
    return places, num_bytes


def _size(value: Value) -> int:
    """Memory set aside: at least a byte, and whole lines of the cache."""
    return -(-max(value.num_bytes, 1) // ALIGNMENT) * ALIGNMENT
