"""`StepKernels` in plain torch and Python, for tests: the real rows go through `ReferenceKernels`, and what stands in
padding is poison. It waits for data wherever it likes, as a device does."""

from typing import Any

import torch
from torch import Tensor

from limelight.kernels import reference_sampling
from limelight.kernels.interface import AttentionBatch, AttentionSettings, SamplingBatch
from limelight.kernels.reference import ReferenceKernels
from limelight.kernels.triton.step_memory import (
    IN_PROMPT,
    LAST_TOKEN_OF_SEAT,
    NOBODY,
    NUM_CHUNKS,
    NUM_DRAWING,
    NUM_PATCHES,
    NUM_ROWS,
    NUM_SAMPLED,
    DrawBatch,
    DrawnWords,
    RowBatch,
    SeatWords,
    StepWords,
)


class ReferenceStepKernels(ReferenceKernels):
    """See `StepKernels`."""

    def patch_seats(self, step: StepWords, seats: SeatWords) -> None:
        num_patches = int(step.header[NUM_PATCHES])
        addresses = step.patch_addresses[:num_patches].long()
        assert len(addresses.unique()) == num_patches, "no word is patched twice"
        seats.words.view(-1)[addresses] = step.patch_values[:num_patches]

    def prepare(self, batch: RowBatch, page_size: int) -> None:
        step = batch.step
        for values in (batch.context_lens, batch.token_ids, batch.positions):
            values.zero_()
        batch.slots.fill_(NOBODY)
        num_chunks, num_rows = int(step.header[NUM_CHUNKS]), int(step.header[NUM_ROWS])
        assert num_rows <= len(batch.slots), "the pass holds the step"
        assert num_chunks <= len(batch.context_lens), "the pass holds the step"
        assert (step.chunk_seats[num_chunks:] == NOBODY).all()
        assert (step.query_starts[num_chunks:] == num_rows).all()
        for chunk in range(num_chunks):
            seat = batch.seats.words[step.chunk_seats[chunk]]
            first, end = step.query_starts[chunk : chunk + 2].tolist()
            assert end - first == 1 or not batch.only_decodes
            start = int(step.chunk_starts[chunk])
            batch.context_lens[chunk] = start + end - first
            positions = torch.arange(start, start + end - first)
            batch.positions[first:end] = positions
            pages = seat[batch.seats.layout.pages + positions // page_size]
            batch.slots[first:end] = pages * page_size + positions % page_size
            token_ids = step.token_ids[first:end]
            last = batch.seats.last_tokens[step.chunk_seats[chunk]]
            batch.token_ids[first:end] = torch.where(token_ids == LAST_TOKEN_OF_SEAT, last, token_ids)

    # ---- attention over the real rows

    def plan(self, batch: Any, kv: Any) -> Any:
        num_chunks, num_rows = int(batch.step.header[NUM_CHUNKS]), int(batch.step.header[NUM_ROWS])
        if not num_rows:
            return None
        chunks = batch.step.chunk_seats[:num_chunks]
        longest = -(-int(batch.context_lens[:num_chunks].max()) // kv.layout.page_size)
        real = AttentionBatch(
            page_table=batch.seats.page_table.index_select(0, chunks)[:, :longest],
            query_starts=batch.step.query_starts[: num_chunks + 1],
            context_lens=batch.context_lens[:num_chunks],
            positions=batch.positions[:num_rows].long(),
            slots=batch.slots[:num_rows].long(),
        )
        return super().plan(real, kv)

    def rotate_and_write(self, kv: Any, layer: int, qkv: Tensor, rotation: Any, plan: Any, *norms: Any) -> Tensor:
        num_rows = 0 if plan is None else len(plan.batch.slots)
        head_dim, num_kv_heads = kv.layout.head_dim, kv.layout.num_kv_heads
        queries = qkv.new_full((len(qkv), qkv.shape[1] // head_dim - 2 * num_kv_heads, head_dim), torch.nan)
        if num_rows:
            real = type(rotation)(rotation.cos[:num_rows], rotation.sin[:num_rows])
            queries[:num_rows] = super().rotate_and_write(kv, layer, qkv[:num_rows], real, plan, *norms)
        return queries

    def attend(self, kv: Any, layer: int, queries: Tensor, plan: Any, settings: AttentionSettings) -> Tensor:
        outputs = queries.new_full((len(queries), queries.shape[1] * queries.shape[2]), torch.nan)
        num_rows = 0 if plan is None else len(plan.batch.slots)
        if num_rows:
            outputs[:num_rows] = super().attend(kv, layer, queries[:num_rows], plan, settings)
        return outputs

    # ---- draw

    def draw(self, logits: Tensor, batch: DrawBatch, drawn: DrawnWords) -> None:
        step, num_sampled = batch.step, int(batch.step.header[NUM_SAMPLED])
        assert num_sampled <= len(logits) == batch.num_sampled, "the pass holds the step"
        assert (step.sample_seats[num_sampled:] == NOBODY).all()
        drawn.words.fill_(-7)
        if num_sampled:
            before = logits.clone()
            drawn.best_logits[:num_sampled] = logits[:num_sampled].amax(-1)
            sampling = _sampling(batch, num_sampled, logits.shape[1])
            sampled = reference_sampling.sample(logits[:num_sampled].clone(), sampling)
            assert sampled.best_scores is not None
            drawn.token_ids[:num_sampled] = sampled.token_ids
            drawn.best_scores[:num_sampled] = sampled.best_scores
            assert before.equal(logits) or before.isnan().any()

    def finish(self, batch: DrawBatch, drawn: DrawnWords) -> None:
        step, layout = batch.step, batch.seats.layout
        num_drawing = int(step.header[NUM_DRAWING])
        assert (step.drawing_seats[num_drawing:] == NOBODY).all()
        for number in range(num_drawing):
            seat, first = int(step.drawing_seats[number]), int(step.drawing_first[number])
            num_right = 0
            while num_right < int(step.drawing_drafts[number]):
                row = int(step.sample_rows[first + num_right])
                if drawn.token_ids[first + num_right] != batch.row_token_ids[row + 1]:
                    break
                num_right += 1
            drawn.num_accepted[number] = num_right
            kept = drawn.token_ids[first : first + num_right + 1]
            batch.seats.last_tokens[seat] = kept[-1]
            if batch.seats.words[seat, layout.word_of("has_penalties")]:
                batch.seats.counts[seat].index_add_(0, kept.long(), torch.ones_like(kept))


def _sampling(batch: DrawBatch, num_sampled: int, vocab_size: int) -> SamplingBatch:
    """What the words of the seats say, as the reference takes it."""
    step, seats, layout = batch.step, batch.seats, batch.seats.layout
    rows = seats.words.index_select(0, step.sample_seats[:num_sampled])
    positions = step.sample_positions[:num_sampled].long()

    def integers(name: str) -> Tensor:
        return rows[:, layout.word_of(name)].long()

    def floats(name: str) -> Tensor:
        return rows[:, layout.word_of(name)].contiguous().view(torch.float32)

    bias_rows, bias_token_ids, bias_values = [], [], []
    for row in range(num_sampled):
        num_blocked = int(integers("num_blocked")[row])
        counts = bool(positions[row] < integers("blocked_below_position")[row])
        for entry in range(0 if counts else num_blocked, int(integers("num_bias")[row])):
            bias_rows.append(row)
            bias_token_ids.append(int(rows[row, layout.bias_ids + entry]))
            bias_values.append(
                float(rows[row, layout.bias_values + entry : layout.bias_values + entry + 1].view(torch.float32))
            )
    penalised = integers("has_penalties").nonzero().flatten()
    counts = seats.counts.index_select(0, step.sample_seats[:num_sampled].index_select(0, penalised))
    masks = step.sample_masks[:num_sampled].long()
    bits = batch.allowed[masks.clamp(min=0)].unsqueeze(-1) >> torch.arange(32) & 1
    return SamplingBatch(
        temperature=floats("temperature"),
        top_p=floats("top_p"),
        min_p=floats("min_p"),
        repetition_penalty=floats("repetition_penalty"),
        presence_penalty=floats("presence_penalty"),
        frequency_penalty=floats("frequency_penalty"),
        top_k=integers("top_k"),
        seeds=(integers("seed_high") << 32) | (integers("seed_low") & 0xFFFFFFFF),
        positions=positions,
        bias_rows=torch.tensor(bias_rows, dtype=torch.int64),
        bias_token_ids=torch.tensor(bias_token_ids, dtype=torch.int64),
        bias_values=torch.tensor(bias_values, dtype=torch.float32),
        penalty_rows=penalised,
        prompt_mask=counts >= IN_PROMPT if len(penalised) else None,
        output_counts=counts % IN_PROMPT if len(penalised) else None,
        num_logprobs=None,
        allowed=(bits.flatten(1)[:, :vocab_size] == 1) | (masks == NOBODY).unsqueeze(1),
    )
