"""The seat table: what the device knows of each running sequence between steps. Changed by a step's deltas only.

Sampling settings have a table of their own (`sampling_seats.py`); here are page tables and last tokens.
"""

import torch

from limelight.step import Chunk


class Seats:
    """Page-table rows and last drawn tokens.

    Attributes:
        page_table: [seats, max_pages] int32; unused entries are 0.
        last_tokens: [seats] int64, what a decode chunk reads and the sampler writes.
        adapters: per seat the id of its tenant's adapter, None for the base model alone.
    """

    def __init__(self, num_seats: int, max_pages: int, page_size: int, device: str) -> None:
        self.page_table = torch.zeros(num_seats, max_pages, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(num_seats, dtype=torch.int64, device=device)
        self.adapters: list[int | None] = [None] * num_seats
        self._page_size = page_size
        self._num_pages = [0] * num_seats

    def clear(self, seats: list[int]) -> None:
        """Forget what the tenants left: on release, and again when a seat is taken."""
        if not seats:
            return
        for seat in seats:
            self._num_pages[seat] = 0
            self.adapters[seat] = None
        index = torch.tensor(seats, device=self.page_table.device)
        self.page_table.index_fill_(0, index, 0)
        self.last_tokens.index_fill_(0, index, 0)

    def append_pages(self, chunks: tuple[Chunk, ...]) -> None:
        """Append each chunk's new pages to its seat's row.

        Raises:
            ValueError: a row would be longer than the longest context, or still does not cover its chunk. No row has
                been changed then.
        """
        rows: list[int] = []
        columns: list[int] = []
        pages: list[int] = []
        for chunk in chunks:
            first = self._num_pages[chunk.seat]
            end = first + len(chunk.new_pages)
            needed = -(-(chunk.start + chunk.num_tokens) // self._page_size)
            if not needed <= end <= self.page_table.shape[1]:
                raise ValueError(
                    f"the chunk at seat {chunk.seat} ends at position {chunk.start + chunk.num_tokens} and has {end} "
                    f"pages; it needs {needed}, and a seat holds at most {self.page_table.shape[1]}"
                )
            rows += [chunk.seat] * len(chunk.new_pages)
            columns += range(first, end)
            pages += chunk.new_pages
        if not rows:
            return
        for chunk in chunks:
            self._num_pages[chunk.seat] += len(chunk.new_pages)
        device = self.page_table.device
        self.page_table[torch.tensor(rows, device=device), torch.tensor(columns, device=device)] = torch.tensor(
            pages, dtype=torch.int32, device=device
        )
