"""Drawing tokens in C: the settings of the seats in memory that the operations read, and what they write.

Who sits where, and what settings mean, is for `models/recorded_sampling.py` to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.library import Function
from limelight.kernels.cpu.recorder import Recorder, RowCount, Value
from limelight.kernels.cpu.step_buffers import StepBuffers

SAMPLE = Function("record_sample", "ppppppppppppppppppi")
ROW_BYTES = Function("sampling_row_bytes", "i")
NUM_BLOCKS = Function("sampling_num_blocks", "i")
MOST_LOGPROBS = 20
"""The largest number of best tokens that are reported beside the drawn one."""
MOST_ASKED = 128
"""The largest number of tokens that are reported beside these because they were asked for."""
SEAT = np.dtype(
    [
        ("seed", np.int64),
        ("blocked_below", np.int64),
        ("bias_ids", np.uint64),
        ("bias_values", np.uint64),
        ("blocked_ids", np.uint64),
        ("prompt_mask", np.uint64),
        ("output_counts", np.uint64),
        ("asked_ids", np.uint64),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("top_k", np.int32),
        ("num_logprobs", np.int32),
        ("num_biases", np.int32),
        ("num_blocked", np.int32),
        ("num_asked", np.int32),
    ],
    align=True,
)
"""Settings of a seat: `Seat` of `csrc/sampling.h`, where pointers (0: none) are numbers."""


class SamplingBuffers:
    """See the module.

    Attributes:
        step: says which rows draw, for which seats and positions.
        seats: SEAT [seats]. Pointers are set by the methods.
        row_masks: uint64 [largest sampled], pointers (0: none) to the masks of the rows, set by the methods.
    """

    def __init__(self, step: StepBuffers, vocab_size: int) -> None:
        self.step = step
        self.vocab_size = vocab_size
        self.seats = np.zeros(step.limits.num_seats, SEAT)
        self.seats["num_logprobs"] = -1
        self.row_masks = np.zeros(step.limits.num_sampled, np.uint64)
        self._masks: list[bytes] = []
        self._lists: dict[int, list[NDArray[np.int32] | NDArray[np.float32]]] = {}
        self._counts: dict[int, tuple[NDArray[np.uint8], NDArray[np.int32]]] = {}
        self._unused_counts: list[tuple[NDArray[np.uint8], NDArray[np.int32]]] = []

    def clear(self, seat: int) -> None:
        """Forget everything: the seat draws greedily, without penalties and log-probabilities."""
        self.seats[seat] = np.zeros((), SEAT)
        self.seats["num_logprobs"][seat] = -1
        self._lists.pop(seat, None)
        if seat in self._counts:
            self._unused_counts.append(self._counts.pop(seat))

    def set_bias(self, seat: int, token_ids: Sequence[int], values: Sequence[float]) -> None:
        """Add to the logits of some tokens, all within the vocabulary."""
        ids, additions = np.array(token_ids, np.int32), np.array(values, np.float32)
        self._lists.setdefault(seat, []).extend((ids, additions))
        entry = self.seats[seat : seat + 1]
        entry["bias_ids"], entry["bias_values"] = ids.ctypes.data, additions.ctypes.data
        entry["num_biases"] = len(ids)

    def block(self, seat: int, token_ids: Sequence[int], below_position: int) -> None:
        """Never draw some tokens, all within the vocabulary, at positions below `below_position`."""
        ids = np.array(token_ids, np.int32)
        self._lists.setdefault(seat, []).append(ids)
        entry = self.seats[seat : seat + 1]
        entry["blocked_ids"], entry["num_blocked"], entry["blocked_below"] = ids.ctypes.data, len(ids), below_position

    def ask(self, seat: int, token_ids: Sequence[int]) -> None:
        """Tell the log-probabilities of some tokens, all within the vocabulary, where the seat wants any."""
        ids = np.array(token_ids, np.int32)
        self._lists.setdefault(seat, []).append(ids)
        entry = self.seats[seat : seat + 1]
        entry["asked_ids"], entry["num_asked"] = ids.ctypes.data, len(ids)

    def count_tokens(self, seat: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Apply the seat's penalties, to these tokens and those that it draws."""
        if not self._unused_counts:
            self._unused_counts.append((np.empty(self.vocab_size, np.uint8), np.empty(self.vocab_size, np.int32)))
        mask, counts = self._counts[seat] = self._unused_counts.pop()
        mask[:] = 0
        mask[np.array(prompt, np.int64)] = 1
        counts[:] = np.bincount(np.array(output, np.int64), minlength=self.vocab_size)
        entry = self.seats[seat : seat + 1]
        entry["prompt_mask"], entry["output_counts"] = mask.ctypes.data, counts.ctypes.data

    def allow(self, first_row: int, num_rows: int, masks: bytes) -> None:
        """Let rows draw only what their masks allow, which lie one after the other in `masks` (`TokenMasks` says how),
        until `allow_all` is called.
        """
        self._masks.append(masks)
        address, row_bytes = np.frombuffer(masks, np.uint8).ctypes.data, len(masks) // num_rows
        self.row_masks[first_row : first_row + num_rows] = [address + row * row_bytes for row in range(num_rows)]

    def allow_all(self) -> None:
        """Let all rows draw any token."""
        self.row_masks[:] = 0
        self._masks.clear()


@dataclass(frozen=True, slots=True)
class SampledBuffers:
    """What a run draws; the first `sampled` rows are those of the step.

    Attributes:
        token_ids: int32 [largest sampled].
        best_logits: float32 [largest sampled], the largest logit as the model gave it; NaN if one of the row is.
        best_scores: float32 [largest sampled], the largest after penalties, biases and masks; minus infinity if the row
            has no token to draw.
        logprobs: float32 [largest sampled] of the drawn tokens, of rows whose seats want log-probabilities.
        top_token_ids, top_logprobs: int32 and float32 [largest sampled, MOST_LOGPROBS], best first, of such rows; as
            many as the seat wants and the vocabulary has, the others hold anything.
        asked_logprobs: float32 [largest sampled, MOST_ASKED], of the tokens that the seats of such rows ask for.
    """

    token_ids: NDArray[np.int32]
    best_logits: NDArray[np.float32]
    best_scores: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    top_token_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    asked_logprobs: NDArray[np.float32]


def sample(recorder: Recorder, logits: Value, batch: SamplingBuffers) -> SampledBuffers:
    """Draw a token for each row of `logits`, and count it for seats with penalties."""
    rows: RowCount = logits.rows
    library, vocab_size = recorder.library, logits.width
    sampled = SampledBuffers(
        token_ids=np.zeros(rows.largest, np.int32),
        best_logits=np.zeros(rows.largest, np.float32),
        best_scores=np.zeros(rows.largest, np.float32),
        logprobs=np.zeros(rows.largest, np.float32),
        top_token_ids=np.zeros((rows.largest, MOST_LOGPROBS), np.int32),
        top_logprobs=np.zeros((rows.largest, MOST_LOGPROBS), np.float32),
        asked_logprobs=np.zeros((rows.largest, MOST_ASKED), np.float32),
    )
    recorder.append(
        SAMPLE,
        rows,
        batch.step.sample_seats,
        batch.step.sample_positions,
        batch.row_masks,
        batch.seats,
        logits,
        recorder.value(rows, vocab_size),  # scores
        recorder.value(rows, library.call_long(NUM_BLOCKS, vocab_size)),  # their maxima
        recorder.value(rows, library.call_long(ROW_BYTES, vocab_size), np.uint8),  # slices
        recorder.value(rows, 1),  # floors
        sampled.token_ids,
        sampled.best_logits,
        sampled.best_scores,
        sampled.logprobs,
        sampled.top_token_ids,
        sampled.top_logprobs,
        sampled.asked_logprobs,
        vocab_size,
    )
    return sampled
