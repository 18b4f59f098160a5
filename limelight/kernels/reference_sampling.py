"""Drawing tokens in plain torch: penalties, bias, temperature, cuts, and noise that depends on nothing but its key.

A token is drawn by the Gumbel-max trick (Gumbel 1954): the largest of logit + Gumbel noise, with the noise of a token a
hash of (seed, position, token id). So a row draws the same alone, in any batch, and again after a preemption.
"""

import torch
from torch import Tensor

from limelight.kernels.gumbel_noise import gumbel_noise
from limelight.kernels.interface import SampledTokens, SamplingBatch

NUCLEUS_CANDIDATES = 512
"""Best tokens looked at first for top_p; only a flatter distribution than these can cover is sorted whole."""


def sample(logits: Tensor, batch: SamplingBatch) -> SampledTokens:
    """See `Kernels.sample`."""
    logprobs = top_logprobs = top_token_ids = best_scores = None
    if batch.num_logprobs is not None:
        logprobs = logits.log_softmax(-1)
        top_logprobs, top_token_ids = logprobs.topk(min(batch.num_logprobs, logits.shape[1]), dim=-1)

    if batch.prompt_mask is not None and batch.output_counts is not None:
        _penalise(logits, batch, batch.prompt_mask, batch.output_counts)
    if batch.bias_rows.numel():
        logits.index_put_((batch.bias_rows, batch.bias_token_ids), batch.bias_values, accumulate=True)
    if batch.allowed is not None:
        best_scores = logits.masked_fill_(~batch.allowed, -torch.inf).amax(-1)

    random = (batch.temperature > 0).nonzero().squeeze(1)
    if random.numel() == 0:
        token_ids = logits.argmax(-1)
    elif random.numel() == logits.shape[0]:
        token_ids = _draw(logits, batch, random)
    else:
        token_ids = logits.argmax(-1)
        token_ids[random] = _draw(logits.index_select(0, random), batch, random)

    drawn = None if logprobs is None else logprobs.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    return SampledTokens(
        token_ids=token_ids,
        logprobs=drawn,
        top_token_ids=top_token_ids,
        top_logprobs=top_logprobs,
        best_scores=best_scores,
    )


def _penalise(logits: Tensor, batch: SamplingBatch, prompt_mask: Tensor, output_counts: Tensor) -> None:
    """Repetition penalty over prompt and output (Keskar et al. 2019), then presence and frequency over output."""
    rows = batch.penalty_rows
    repetition, presence, frequency = (
        setting.index_select(0, rows).unsqueeze(1)
        for setting in (batch.repetition_penalty, batch.presence_penalty, batch.frequency_penalty)
    )
    chosen = logits.index_select(0, rows)
    in_output = output_counts > 0
    repeated = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    chosen = torch.where(prompt_mask | in_output, repeated, chosen)
    logits.index_copy_(0, rows, chosen - frequency * output_counts - presence * in_output)


def _draw(logits: Tensor, batch: SamplingBatch, rows: Tensor) -> Tensor:
    """Draw from `logits`, which are those of `rows` of the batch; all have a temperature."""
    scores = logits / batch.temperature.index_select(0, rows).unsqueeze(1)
    for setting, is_set, floor in (
        (batch.top_k, batch.top_k > 0, _top_k_floor),
        (batch.top_p, batch.top_p < 1, _top_p_floor),
        (batch.min_p, batch.min_p > 0, _min_p_floor),
    ):
        affected = is_set.index_select(0, rows).nonzero().squeeze(1)
        if affected.numel():
            chosen = scores.index_select(0, affected)
            lowest = floor(chosen, setting.index_select(0, rows.index_select(0, affected)))
            scores.index_copy_(0, affected, chosen.masked_fill_(chosen < lowest, -torch.inf))
    noise = gumbel_noise(batch.seeds.index_select(0, rows), batch.positions.index_select(0, rows), scores.shape[1])
    return scores.add_(noise).argmax(-1)


def _top_k_floor(scores: Tensor, top_k: Tensor) -> Tensor:
    """Score of the k-th best token of each row, [rows, 1]."""
    kept = top_k.clamp(max=scores.shape[1]).unsqueeze(1)
    return scores.topk(int(kept.max()), dim=-1).values.gather(1, kept - 1)


def _top_p_floor(scores: Tensor, top_p: Tensor) -> Tensor:
    """Score of the last token in the nucleus (Holtzman et al. 2020), [rows, 1].

    The nucleus is the shortest run of best tokens whose probabilities reach `top_p`.
    """
    total = scores.logsumexp(-1, keepdim=True)
    for candidates in (min(NUCLEUS_CANDIDATES, scores.shape[1]), scores.shape[1]):
        best = scores.topk(candidates, dim=-1).values
        probabilities = (best - total).exp()
        reached = probabilities.cumsum(-1)
        if not bool((reached[:, -1] < top_p).any()):
            break
    # A token is in as long as those before it have not reached top_p, so the best one always is.
    kept = (reached - probabilities < top_p.unsqueeze(1)).sum(-1, keepdim=True)
    return best.gather(1, (kept - 1).clamp_(min=0))


def _min_p_floor(scores: Tensor, min_p: Tensor) -> Tensor:
    """Score of a token with `min_p` times the best token's probability, [rows, 1]."""
    return scores.amax(-1, keepdim=True) + min_p.log().unsqueeze(1)
