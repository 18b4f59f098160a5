"""Sampling against an oracle in numpy that works with probabilities instead of noise."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.kernels.interface import SampledTokens, SamplingBatch
from limelight.kernels.reference_sampling import sample

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@dataclasses.dataclass(frozen=True)
class Row:
    """Settings of one row, as plain values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    position: int = 10
    bias: tuple[tuple[int, float], ...] = ()
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()

    @property
    def penalised(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


def batch_of(rows: list[Row], vocab_size: int, num_logprobs: int | None = None) -> SamplingBatch:
    def floats(name: str) -> torch.Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=torch.float32)

    def integers(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    bias = [(index, token, value) for index, row in enumerate(rows) for token, value in row.bias]
    penalised = [index for index, row in enumerate(rows) if row.penalised]
    masks = torch.zeros(len(penalised), vocab_size, dtype=torch.bool)
    counts = torch.zeros(len(penalised), vocab_size, dtype=torch.int32)
    for index, row in enumerate(penalised):
        masks[index, list(rows[row].prompt)] = True
        for token in rows[row].output:
            counts[index, token] += 1
    return SamplingBatch(
        temperature=floats("temperature"),
        top_p=floats("top_p"),
        min_p=floats("min_p"),
        repetition_penalty=floats("repetition_penalty"),
        presence_penalty=floats("presence_penalty"),
        frequency_penalty=floats("frequency_penalty"),
        top_k=integers([row.top_k for row in rows]),
        seeds=integers([row.seed for row in rows]),
        positions=integers([row.position for row in rows]),
        bias_rows=integers([index for index, _, _ in bias]),
        bias_token_ids=integers([token for _, token, _ in bias]),
        bias_values=torch.tensor([value for _, _, value in bias], dtype=torch.float32),
        penalty_rows=integers(penalised),
        prompt_mask=masks if penalised else None,
        output_counts=counts if penalised else None,
        num_logprobs=num_logprobs,
    )


def draw(logits: np.ndarray, rows: list[Row], num_logprobs: int | None = None) -> SampledTokens:
    tensor = torch.tensor(logits, dtype=torch.float32)
    tensor = tensor.expand(len(rows), -1).clone() if tensor.dim() == 1 else tensor
    return sample(tensor, batch_of(rows, tensor.shape[1], num_logprobs))


def changed(logits: np.ndarray, row: Row) -> np.ndarray:
    """Logits after penalties and bias, in float64."""
    logits = logits.astype(np.float64)
    counts = np.bincount(np.array(row.output, dtype=int), minlength=len(logits))
    for token in {*row.prompt, *row.output}:
        logits[token] = (
            logits[token] / row.repetition_penalty if logits[token] > 0 else logits[token] * row.repetition_penalty
        )
    logits = logits - row.frequency_penalty * counts - row.presence_penalty * (counts > 0)
    for token, value in row.bias:
        logits[token] += value
    return logits


def probabilities(logits: np.ndarray, row: Row) -> np.ndarray:
    """The distribution to draw from, in float64. Ties at a cut are kept."""
    scores = changed(logits, row) / row.temperature
    weights = np.exp(scores - scores.max())
    if row.top_k:
        weights[weights < np.sort(weights)[::-1][: row.top_k][-1]] = 0.0
    if row.top_p < 1.0:
        best_first = np.sort(weights)[::-1] / weights.sum()
        before = np.cumsum(best_first) - best_first
        last = best_first[(before < row.top_p).sum() - 1]
        weights[weights / weights.sum() < last * (1 - 1e-12)] = 0.0
    weights[weights < row.min_p * weights.max() * (1 - 1e-12)] = 0.0
    return weights / weights.sum()


def frequencies(logits: np.ndarray, row: Row, draws: int = 20_000) -> np.ndarray:
    rows = [dataclasses.replace(row, seed=seed) for seed in range(draws)]
    return np.bincount(draw(logits, rows).token_ids.numpy(), minlength=logits.shape[-1]) / draws


LOGITS = np.random.default_rng(1).normal(0.0, 1.5, 24)
SETTINGS: dict[str, Row] = {
    "plain": Row(),
    "temperature": Row(temperature=0.5),
    "high temperature": Row(temperature=2.0),
    "top_k": Row(top_k=3),
    "top_p": Row(top_p=0.6),
    "min_p": Row(min_p=0.25),
    "repetition": Row(repetition_penalty=3.0, prompt=(int(LOGITS.argmax()), int(LOGITS.argmin())), output=(2, 2)),
    "presence": Row(presence_penalty=1.7, prompt=(1,), output=(int(LOGITS.argmax()), int(LOGITS.argmax()))),
    "frequency": Row(frequency_penalty=0.9, prompt=(1,), output=(int(LOGITS.argmax()), int(LOGITS.argmax()))),
    "negative penalties": Row(presence_penalty=-1.0, frequency_penalty=-0.5, output=(3, 3, 3)),
    "bias": Row(bias=((5, 3.0), (int(LOGITS.argmax()), -4.0))),
    "blocked": Row(bias=((int(LOGITS.argmax()), -np.inf), (int(LOGITS.argmax()), 50.0))),
    "everything": Row(
        temperature=0.8,
        top_k=9,
        top_p=0.85,
        min_p=0.08,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        prompt=(1, 2, 3),
        output=(4, 4, 7),
        bias=((11, 1.5),),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_drawn_with_the_probability_that_the_settings_give(name: str) -> None:
    row = SETTINGS[name]
    expected = probabilities(LOGITS, row)
    found = frequencies(LOGITS, row)
    assert found[expected == 0].sum() == 0
    # Five standard deviations of each count.
    assert np.all(np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / 20_000) + 1e-9)
    if name != "plain":
        assert np.abs(expected - probabilities(LOGITS, Row())).max() > 0.02, "the setting must make a difference"


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_takes_the_best_token_after_penalties_and_bias_whatever_the_cuts(name: str) -> None:
    row = dataclasses.replace(SETTINGS[name], temperature=0.0)
    assert draw(LOGITS, [row]).token_ids.tolist() == [int(changed(LOGITS, row).argmax())]


any_row = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.0]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 24, 1000]),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1e-6, 0.5, 1.3, 1e6]),
    presence_penalty=st.sampled_from([0.0, -2.0, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -2.0, 2.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**20),
    bias=st.lists(st.tuples(st.integers(0, 23), st.sampled_from([-100.0, 100.0, 1.0, -np.inf])), max_size=3).map(tuple),
    prompt=st.lists(st.integers(0, 23), max_size=5).map(tuple),
    output=st.lists(st.integers(0, 23), max_size=5).map(tuple),
)


@settings(max_examples=150)
@given(rows=st.lists(any_row, min_size=1, max_size=6), data=st.randoms(use_true_random=False))
def test_a_row_draws_the_same_alone_and_in_any_batch(rows: list[Row], data: Any) -> None:
    logits = np.stack([np.random.default_rng(index).normal(0.0, 2.0, 24) for index in range(len(rows))])
    together = draw(logits, rows, num_logprobs=3)
    order = list(range(len(rows)))
    data.shuffle(order)
    shuffled = draw(logits[order], [rows[index] for index in order])
    assert shuffled.token_ids.tolist() == [together.token_ids[index].item() for index in order]
    for index, row in enumerate(rows):
        alone = draw(logits[index : index + 1], [row])
        assert alone.token_ids.tolist() == [together.token_ids[index].item()]
        if row.temperature > 0:
            assert probabilities(logits[index], row)[alone.token_ids[0]] > 0
        else:
            assert changed(logits[index], row)[alone.token_ids[0]] >= changed(logits[index], row).max() - 1e-3


def test_a_nucleus_wider_than_the_first_candidates_is_found_whole() -> None:
    logits = np.random.default_rng(2).normal(0.0, 0.05, 3000)
    row = Row(top_p=0.9)
    expected = probabilities(logits, row)
    assert (expected > 0).sum() > 2000
    rows = [dataclasses.replace(row, seed=seed) for seed in range(4000)]
    drawn = draw(logits, rows).token_ids.numpy()
    # The float32 sum may end the nucleus a few tokens earlier or later.
    nearly = probabilities(logits, dataclasses.replace(row, top_p=0.9005))
    assert np.all(nearly[drawn] > 0)
    assert len(set(drawn.tolist())) > 1400


def test_a_row_without_cuts_beside_rows_with_them_keeps_its_whole_vocabulary() -> None:
    rows = [Row(seed=seed) if seed % 2 else Row(seed=seed, top_k=1) for seed in range(4000)]
    drawn = draw(np.zeros(8) + np.array([1e-3, 0, 0, 0, 0, 0, 0, 0]), rows).token_ids.numpy()
    assert set(drawn[::2]) == {0}
    assert set(drawn[1::2]) == set(range(8))


# ---- log-probabilities


def test_logprobs_are_those_of_the_models_own_distribution() -> None:
    row = SETTINGS["everything"]
    exact = LOGITS - np.log(np.exp(LOGITS).sum())
    sampled = draw(LOGITS, [row, Row(temperature=0.0)], num_logprobs=4)
    assert sampled.logprobs is not None
    assert sampled.top_logprobs is not None
    assert sampled.top_token_ids is not None
    np.testing.assert_allclose(sampled.logprobs.numpy(), exact[sampled.token_ids.numpy()], atol=1e-5)
    best = np.argsort(-LOGITS)[:4]
    for index in range(2):
        assert sampled.top_token_ids[index].tolist() == best.tolist()
        np.testing.assert_allclose(sampled.top_logprobs[index].numpy(), exact[best], atol=1e-5)


def test_logprobs_may_be_asked_for_without_alternatives_or_for_more_than_there_are() -> None:
    assert draw(LOGITS, [Row()]).logprobs is None
    none = draw(LOGITS, [Row()], num_logprobs=0)
    assert none.top_token_ids is not None
    assert none.top_token_ids.shape == (1, 0)
    few = draw(np.zeros(3), [Row()], num_logprobs=20)
    assert few.top_token_ids is not None
    assert few.top_token_ids.shape == (1, 3)


# ---- extremes


def test_a_row_whose_tokens_are_all_blocked_draws_token_0() -> None:
    bias = tuple((token, -np.inf) for token in range(24))
    rows = [Row(bias=bias, temperature=temperature, top_p=0.5, top_k=3, min_p=0.1) for temperature in (0.0, 1.0)]
    assert draw(LOGITS, rows, num_logprobs=2).token_ids.tolist() == [0, 0]


@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30])
def test_extreme_logits_and_settings_still_give_a_likely_token(scale: float) -> None:
    logits = LOGITS * scale
    row = Row(temperature=0.01, top_p=1e-6, min_p=1.0, repetition_penalty=1e6, bias=((3, -100.0), (4, 100.0)))
    row = dataclasses.replace(row, prompt=tuple(range(24)), presence_penalty=2.0, output=(0,) * 50)
    sampled = draw(logits, [row, Row(temperature=0.01)], num_logprobs=5)
    assert sampled.token_ids[1] == int(LOGITS.argmax()) or scale < 1
    assert 0 <= int(sampled.token_ids[0]) < 24
    assert sampled.logprobs is not None
    assert not bool(sampled.logprobs.isnan().any())
