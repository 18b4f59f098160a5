"""Drawing tokens on a GPU: three launches, whose grids depend on the sizes of the buffers alone.

Scores and the best tokens of every tile of the vocabulary (`score_kernels.py`); then per row the choice among these,
and where the row has cuts, the search (`draw_kernels.py`); then guesses, last tokens and counts (`finish_kernels.py`).

Scores are the reference's to the bit. The tokens are, too, but where rounding decides: between two noisy scores within
some 1e-6 of their size, on a token whose better ones weigh `top_p` to within 1e-6 of the whole, and on one that is as
likely as `min_p` asks to within 1e-6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from limelight.kernels.triton.build import KernelBuild
from limelight.kernels.triton.draw_kernels import draw_kernel
from limelight.kernels.triton.finish_kernels import finish_kernel
from limelight.kernels.triton.score_kernels import score_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from limelight.kernels.triton.step_memory import DrawBatch, DrawnWords

TILE = 1024
"""Tokens whose best one is kept."""
GROUP = 8
"""Tiles that a row's program reads at once."""
PROGRAMS_PER_PROCESSOR = 8
"""Of scoring, as many as fit a multiprocessor."""
SCORE_WARPS, DRAW_WARPS, FINISH_WARPS = 4, 16, 4
CHUNK_BLOCK = 128


def draw(logits: Tensor, batch: DrawBatch, drawn: DrawnWords, num_processors: int) -> None:
    """Draw a token for each sampled row of `logits` [batch.num_sampled, vocab] float32, which stay as they are.

    Writes `token_ids`, `best_logits` and `best_scores`.
    """
    num_sampled, vocab_size = logits.shape
    step, seats = batch.step, batch.seats
    num_tiles = triton.cdiv(vocab_size, TILE)
    num_parts = min(num_tiles, triton.cdiv(PROGRAMS_PER_PROCESSOR * num_processors, num_sampled))
    tiles_of_program = triton.cdiv(num_tiles, num_parts)
    best_logits, best_scores, noisy_scores = logits.new_empty(3, num_sampled, num_tiles)
    best_tokens, noisy_tokens, listed = logits.new_empty(3, num_sampled, num_tiles, dtype=torch.int32)
    scores = torch.empty_like(logits)
    score_kernel[(num_sampled, triton.cdiv(num_tiles, tiles_of_program))](
        step.sample_seats,
        step.sample_positions,
        step.sample_masks,
        seats.words,
        seats.words.stride(0),
        seats.counts,
        batch.allowed,
        batch.allowed.stride(0),
        logits,
        scores,
        vocab_size,
        num_tiles,
        tiles_of_program,
        best_logits,
        best_scores,
        best_tokens,
        noisy_scores,
        noisy_tokens,
        TILE=TILE,
        num_warps=SCORE_WARPS,
        num_stages=1,
        enable_fp_fusion=False,
    )
    draw_kernel[(num_sampled,)](
        step.sample_seats,
        step.sample_positions,
        seats.words,
        seats.words.stride(0),
        scores,
        vocab_size,
        num_tiles,
        best_logits,
        best_scores,
        best_tokens,
        noisy_scores,
        noisy_tokens,
        listed,
        drawn.token_ids,
        drawn.best_logits,
        drawn.best_scores,
        TILES=triton.next_power_of_2(num_tiles),
        TILE=TILE,
        GROUP=GROUP,
        num_warps=DRAW_WARPS,
        num_stages=1,
        enable_fp_fusion=False,
    )


def finish(batch: DrawBatch, drawn: DrawnWords) -> None:
    """Write `num_accepted` and the last tokens of the seats that draw, and count what counts for their penalties."""
    step, seats = batch.step, batch.seats
    finish_kernel[(triton.cdiv(step.limits.chunks, CHUNK_BLOCK),)](
        step.drawing_seats,
        step.drawing_first,
        step.drawing_drafts,
        step.sample_rows,
        batch.row_token_ids,
        seats.words,
        seats.words.stride(0),
        seats.counts,
        seats.counts.stride(0),
        drawn.token_ids,
        drawn.num_accepted,
        step.limits.chunks,
        BLOCK=CHUNK_BLOCK,
        num_warps=FINISH_WARPS,
        num_stages=1,
        enable_fp_fusion=False,
    )


def builds(vocab_size: int) -> Iterator[KernelBuild]:
    """What `draw` and `finish` launch for a vocabulary."""
    tiles = triton.next_power_of_2(triton.cdiv(vocab_size, TILE))
    words = dict.fromkeys(
        (
            *("sample_seats", "sample_positions", "sample_masks", "seats", "counts", "allowed", "best_tokens"),
            *("noisy_tokens", "listed", "token_ids", "drawing_seats", "drawing_first", "drawing_drafts"),
            *("sample_rows", "row_token_ids", "num_accepted"),
        ),
        "*i32",
    )
    floats = dict.fromkeys(
        (
            *("logits", "scores", "best_logits", "best_scores", "noisy_scores"),
            *("best_logit_of_row", "best_score_of_row"),
        ),
        "*fp32",
    )
    sizes = dict.fromkeys(
        ("seat_words", "mask_words", "vocab_size", "num_tiles", "tiles_of_program", "most_chunks"), "i32"
    )
    known = words | floats | sizes | {"TILES": tiles, "TILE": TILE, "GROUP": GROUP, "BLOCK": CHUNK_BLOCK}
    for name, kernel, num_warps in (
        (f"scores, {vocab_size:,} tokens", score_kernel, SCORE_WARPS),
        (f"draw, {vocab_size:,} tokens", draw_kernel, DRAW_WARPS),
        ("finish", finish_kernel, FINISH_WARPS),
    ):
        arguments = {parameter.name: known[parameter.name] for parameter in kernel.params}
        yield KernelBuild(name, kernel, arguments, num_warps=num_warps, num_stages=1, enable_fp_fusion=False)
