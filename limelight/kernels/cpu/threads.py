"""The threads on which programs run (`csrc/pool.c`)."""

from limelight.kernels.cpu.library import Allocated, Function, Library

NEW = Function("pool_new", "i")
FREE = Function("pool_free", "p")


class ThreadPool:
    """`num_threads` threads, the one that runs a program included; they sleep while none runs.

    One program runs on a pool at a time. A forked child cannot use it. When the process exits, nobody waits for the
    threads: a daemon thread may be running a program then.
    """

    def __init__(self, library: Library, num_threads: int) -> None:
        """Start the threads.

        Raises:
            MemoryError: the system does not give that many.
        """
        self.num_threads = num_threads
        self.handle = library.call_long(NEW, num_threads)
        if not self.handle:
            raise MemoryError(f"{num_threads} threads cannot be started; set a smaller num_threads")
        self._threads = Allocated(library, FREE, self.handle)

    def close(self) -> None:
        """End the threads; nothing may be running. Happens by itself when the pool is not needed any more."""
        self._threads.free()
