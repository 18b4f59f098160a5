"""The words of a step on the host: views of a pinned buffer by the names of its parts, written with numpy."""

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.triton.step_memory import (
    NOBODY,
    NUM_CHUNKS,
    NUM_DRAWING,
    NUM_PATCHES,
    NUM_ROWS,
    NUM_SAMPLED,
    StepLimits,
    step_parts,
    step_words,
)
from limelight.models.captured.step_content import StepContent

Words = NDArray[np.int32]

NOBODY_BEHIND = ("chunk_seats", "drawing_seats", "sample_seats", "sample_masks")
"""Parts that say by NOBODY where they end."""


class HostWords:
    """See `StepWords`, over an array.

    Attributes:
        part: the parts by name.
    """

    def __init__(self, words: Words, limits: StepLimits) -> None:
        assert len(words) == step_words(limits)
        self.part: dict[str, Words] = {}
        self._limits = limits
        first = 0
        for name, size in step_parts(limits):
            self.part[name] = words[first : first + size]
            first += size

    def write(self, content: StepContent) -> int:
        """Write everything but patches; the length of the prefix that holds it."""
        part = self.part
        header = part["header"]
        header[:] = 0
        header[NUM_CHUNKS], header[NUM_ROWS] = content.num_chunks, content.num_rows
        header[NUM_SAMPLED], header[NUM_DRAWING] = content.num_sampled, content.num_drawing
        for name in NOBODY_BEHIND:
            part[name].fill(NOBODY)
        part["query_starts"].fill(content.num_rows)
        part["sample_rows"].fill(0)
        for name, values in content.parts.items():
            part[name][: len(values)] = values
        return self.prefix(content.num_rows)

    def write_patches(self, addresses: Words, values: Words) -> None:
        """Write patches, at most as many as there is room for."""
        self.part["header"][NUM_PATCHES] = len(addresses)
        self.part["patch_addresses"][: len(addresses)] = addresses
        self.part["patch_values"][: len(values)] = values

    def write_nothing_but_patches(self, addresses: Words, values: Words) -> int:
        """A step without rows that changes seats; the length of the prefix that holds it."""
        self.part["header"][:] = 0
        self.write_patches(addresses, values)
        return self.prefix(0)

    def prefix(self, num_rows: int) -> int:
        """Words that a step of so many rows fills."""
        return step_words(self._limits) - self._limits.rows + num_rows


def empty_step(limits: StepLimits) -> Words:
    """The words of a step without rows."""
    words = np.zeros(step_words(limits), np.int32)
    host = HostWords(words, limits)
    for name in NOBODY_BEHIND:
        host.part[name].fill(NOBODY)
    return words
