"""The compiled kernels of one variant, called through ctypes (which gives up the interpreter lock meanwhile)."""

import ctypes
import sys
from pathlib import Path
from typing import Any, NamedTuple

TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int32, "l": ctypes.c_int64, "f": ctypes.c_float}


class Function(NamedTuple):
    """A C function: its name without the prefix, and one letter for each argument: p pointer, i int32, l int64, f
    float.
    """

    name: str
    arguments: str


class Library:
    """A loaded shared library."""

    def __init__(self, variant: str, path: Path) -> None:
        self.variant = variant
        self._handle = ctypes.CDLL(str(path))
        self._functions: dict[Function, Any] = {}

    def call(self, function: Function, *arguments: float | None) -> int:
        """Call a function that returns int."""
        return int(self._bound(function, ctypes.c_int)(*arguments))

    def call_long(self, function: Function, *arguments: float | None) -> int:
        """Call a function that returns int64 or a pointer (0 for NULL)."""
        return int(self._bound(function, ctypes.c_int64)(*arguments))

    def call_text(self, function: Function, *arguments: float | None) -> str:
        """Call a function that returns a string of C."""
        return ctypes.string_at(self.call_long(function, *arguments)).decode()

    def _bound(self, function: Function, result: type) -> Any:
        bound = self._functions.get(function)
        if bound is None:
            bound = self._handle[f"limelight_{function.name}"]
            bound.argtypes = [TYPES[letter] for letter in function.arguments]
            bound.restype = result
            self._functions[function] = bound
        return bound


class Allocated:
    """What a function of the library has allocated; given back once, by `free` or with the last reference to it.

    `weakref.finalize` would do the same, and register with `atexit` in somebody else's program. When the process exits
    nothing is given back: a daemon thread may be using it then.
    """

    __slots__ = ("_address", "_free", "_library")

    def __init__(self, library: Library, free: Function, address: int) -> None:
        self._library = library
        self._free = free
        self._address = address

    def free(self) -> None:
        """Give it back. Idempotent."""
        address, self._address = self._address, 0
        if address:
            self._library.call(self._free, address)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.free()


class UnmadeLibrary(Library):
    """Stands for one that will be compiled at first use. Kernels over it know what weights and pages take, no more."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
