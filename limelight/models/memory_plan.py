"""How the memory that is free is divided: weights, KV pages, and the context length that these allow.

Pure arithmetic on numbers that the caller measured; nothing is allocated here.
"""

import msgspec

from limelight.errors import OutOfMemory
from limelight.models.wording import as_size

KV_SHARE = 0.4
"""Share of the memory left after the weights that the KV pool takes by default. The rest is for the host program, the
working memory of a step and the page cache that holds a mapped checkpoint: Limelight is often a guest in a process."""
GPU_KV_SHARE = 1.0
"""The same on a GPU where what steps take was measured: what a pool leaves is of no use to anybody."""
UNMEASURED_GPU_KV_SHARE = 0.8
"""The same where it was not."""
MOST = 0.9
"""Share of that memory which the pool may take where the user's max_model_len needs it."""
UNKNOWN_ROOM_KV_BYTES = 2**30
"""Size of the pool where free memory cannot be found out."""
CPU_KV_LIMIT_BYTES = 4 * 2**30
"""Most that the pool takes by default on a CPU: attention over more cached tokens than this is slower than anyone
waits, while the memory would be missed by others. Ask for more with kv_cache_bytes."""
LENGTHS = (1024, 4096)
"""Context lengths whose concurrency the plan tells, beside the longest."""


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What goes where. `num_pages * page_size` tokens fit into the pool at once.

    Attributes:
        max_model_len: context length in tokens; a sequence of this length fits into the pool.
        pages_per_run: the pool takes the memory of a multiple of so many pages.
        working_bytes: what the values of the largest step take, as far as that is known beforehand.
        shortened_from: the model's own context length if the pool made it shorter, else None.
        free_bytes: memory that was free before anything was loaded; None if unknown.
        graphs_bytes: what captured passes take.
        buffers_bytes: what steps read and write beside values: the table of seats with its counts, and what comes in.
        others: for people, what other programs hold of a GPU, and who they are.
    """

    weights_bytes: int
    page_bytes: int
    page_size: int
    num_pages: int
    max_model_len: int
    max_num_seqs: int
    pages_per_run: int = 1
    working_bytes: int = 0
    shortened_from: int | None = None
    free_bytes: int | None = None
    graphs_bytes: int = 0
    buffers_bytes: int = 0
    others: str = ""

    @property
    def kv_bytes(self) -> int:
        """Size of the KV pool."""
        return _in_runs(self.num_pages, self.pages_per_run) * self.page_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_pages * self.page_size

    def concurrency(self, num_tokens: int) -> int:
        """Sequences of `num_tokens` tokens each that run at once without sharing pages."""
        return min(self.num_pages // -(-num_tokens // self.page_size), self.max_num_seqs)

    def table(self) -> str:
        """The plan for people, as aligned lines."""
        lengths = sorted({length for length in LENGTHS if length < self.max_model_len} | {self.max_model_len})
        context = f"{self.max_model_len:,} tokens"
        if self.shortened_from is not None:
            context += f", shortened from {self.shortened_from:,} (raise kv_cache_bytes for more)"
        rows = [
            ("weights", as_size(self.weights_bytes)),
            ("KV cache", f"{as_size(self.kv_bytes)}: {self.num_pages:,} pages, {self.num_tokens:,} tokens"),
            ("context", context),
            ("at once", ", ".join(f"{self.concurrency(length):,} x {length:,} tokens" for length in lengths)),
        ]
        if self.graphs_bytes:
            rows.insert(2, ("CUDA graphs", as_size(self.graphs_bytes)))
        if self.buffers_bytes:
            rows.insert(2, ("seats", as_size(self.buffers_bytes)))
        if self.working_bytes:
            rows.insert(2, ("one step", f"up to {as_size(self.working_bytes)}"))
        if self.others:
            rows.insert(0, ("others", self.others))
        if self.free_bytes is not None:
            rows.insert(0, ("free memory", as_size(self.free_bytes)))
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def plan_memory(
    *,
    weights_bytes: int,
    page_bytes: int,
    page_size: int,
    context_length: int,
    max_model_len: int | None,
    kv_cache_bytes: int | None,
    free_bytes: int | None,
    max_num_seqs: int,
    pages_per_run: int = 1,
    working_bytes: int = 0,
    kv_limit_bytes: int | None = CPU_KV_LIMIT_BYTES,
    kv_share: float = KV_SHARE,
    graphs_bytes: int = 0,
    buffers_bytes: int = 0,
    others: str = "",
) -> MemoryPlan:
    """Choose the number of pages and the context length.

    Args:
        weights_bytes: the weights as they will lie in memory.
        page_bytes: one page over all layers, keys and values.
        page_size: tokens per page.
        context_length: the model's own.
        max_model_len: as the user set it, which is kept or refused; None takes `context_length`, or less if less fits.
        kv_cache_bytes: as the user set it, likewise; None takes a share of what is free.
        free_bytes: before the weights are loaded; None if unknown, and then nothing is refused for want of it.
        max_num_seqs: sequences that run at once; the pool is not made larger than they can use.
        pages_per_run: as in `MemoryPlan`.
        working_bytes: for the values of the largest step; 0 leaves them to what the pool's share leaves.
        kv_limit_bytes: most that the pool takes unless told, or None.
        kv_share: share of what the rest leaves that the pool takes unless told.
        graphs_bytes, buffers_bytes, others: as in `MemoryPlan`.

    Raises:
        OutOfMemory: with the numbers and the smallest change that would fit.
    """
    step_bytes = working_bytes + graphs_bytes + buffers_bytes
    room = None if free_bytes is None else free_bytes - weights_bytes - step_bytes
    least_bytes = pages_per_run * page_bytes
    if room is not None and room < least_bytes:
        raise OutOfMemory(
            f"the weights need {as_size(weights_bytes)}{_and_working(step_bytes)} and the smallest KV cache "
            f"{as_size(least_bytes)}, but only "
            f"{as_size(free_bytes or 0)} of memory is free; free {as_size(least_bytes - room)} more, or choose a "
            "smaller model or dtype"
        )
    wanted_len = context_length if max_model_len is None else max_model_len
    needed = -(-wanted_len // page_size)
    if kv_cache_bytes is not None:
        needs = f"the weights need {weights_bytes:,}{_and_working(step_bytes)}"
        num_pages = _pages_as_told(kv_cache_bytes, page_bytes, pages_per_run, page_size, needs, free_bytes, room)
    else:
        num_pages = _pages_by_share(room, kv_share, page_bytes, kv_limit_bytes, max_num_seqs * needed)
        num_pages = max(num_pages // pages_per_run, 1) * pages_per_run
        if max_model_len is not None and num_pages < needed:
            # The share is our habit, the length is the user's wish.
            num_pages = (
                needed
                if room is None
                else min(needed, max(int(max(MOST, kv_share) * room) // page_bytes // pages_per_run, 1) * pages_per_run)
            )
    if num_pages < needed and max_model_len is not None:
        raise OutOfMemory(
            f"max_model_len is {max_model_len:,}, which needs a KV cache of {needed * page_bytes:,} bytes "
            f"({as_size(needed * page_bytes)}), but that has {num_pages * page_bytes:,}"
            f"{_of_free(weights_bytes, free_bytes)}; {_fix(num_pages, page_size, needed * page_bytes, room)}"
        )
    fitting_len = min(wanted_len, num_pages * page_size)
    return MemoryPlan(
        weights_bytes=weights_bytes,
        page_bytes=page_bytes,
        page_size=page_size,
        num_pages=num_pages,
        max_model_len=fitting_len,
        max_num_seqs=max_num_seqs,
        pages_per_run=pages_per_run,
        working_bytes=working_bytes,
        shortened_from=wanted_len if fitting_len < wanted_len else None,
        free_bytes=free_bytes,
        graphs_bytes=graphs_bytes,
        buffers_bytes=buffers_bytes,
        others=others,
    )


def _pages_as_told(
    kv_cache_bytes: int,
    page_bytes: int,
    pages_per_run: int,
    page_size: int,
    needs: str,
    free_bytes: int | None,
    room: int | None,
) -> int:
    if kv_cache_bytes < page_bytes:
        raise OutOfMemory(
            f"kv_cache_bytes is {kv_cache_bytes:,}, but one page of {page_size} tokens takes {page_bytes:,}; "
            f"set kv_cache_bytes to at least {page_bytes:,}"
        )
    num_pages = kv_cache_bytes // page_bytes
    if room is not None and _in_runs(num_pages, pages_per_run) * page_bytes > room:
        raise OutOfMemory(
            f"kv_cache_bytes is {kv_cache_bytes:,} and {needs}, but only {free_bytes:,} bytes of memory are free; "
            f"set kv_cache_bytes to at most {room // (pages_per_run * page_bytes) * pages_per_run * page_bytes:,}"
        )
    return num_pages


def _pages_by_share(
    room: int | None, kv_share: float, page_bytes: int, kv_limit_bytes: int | None, most_useful: int
) -> int:
    share = UNKNOWN_ROOM_KV_BYTES if room is None else int(room * kv_share)
    if kv_limit_bytes is not None:
        share = min(share, kv_limit_bytes)
    return max(min(share // page_bytes, most_useful), 1)


def _in_runs(num_pages: int, pages_per_run: int) -> int:
    """Pages whose memory a pool of `num_pages` takes."""
    return -(-num_pages // pages_per_run) * pages_per_run


def _and_working(working_bytes: int) -> str:
    return f", a step {as_size(working_bytes)}" if working_bytes else ""


def _of_free(weights_bytes: int, free_bytes: int | None) -> str:
    if free_bytes is None:
        return ""
    return f" ({as_size(free_bytes)} of memory is free, the weights take {as_size(weights_bytes)})"


def _fix(num_pages: int, page_size: int, needed_bytes: int, room: int | None) -> str:
    shorter = f"set max_model_len to at most {num_pages * page_size:,}"
    if room is not None and needed_bytes > room:
        return shorter
    return f"{shorter}, or kv_cache_bytes to at least {needed_bytes:,}"
