"""The reference kernels against formulas written out in float64, one number at a time."""

import math

import numpy as np
import pytest
import torch

from limelight.kernels.interface import LinearSegment
from limelight.kernels.reference import ReferenceKernels
from tests.kernels.batches import batch_of, close, pool, random

pytestmark = pytest.mark.usefixtures("one_torch_thread")


# ---- projections, norms, gates


@pytest.mark.parametrize("rows", [1, 3, 8, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_segments_multiply_as_one_matrix(kernels: ReferenceKernels, rows: int, dtype: torch.dtype) -> None:
    first, second, bias = (
        random(24, 16, seed=1).to(dtype),
        random(10, 16, seed=2).to(dtype),
        random(10, seed=3).to(dtype),
    )
    packed = kernels.pack_linear([LinearSegment(weight=first), LinearSegment(weight=second, bias=bias)])
    inputs = random(rows, 16).to(dtype)
    expected = np.concatenate(
        (
            inputs.double().numpy() @ first.double().numpy().T,
            inputs.double().numpy() @ second.double().numpy().T + bias.double().numpy(),
        ),
        axis=1,
    )
    close(kernels.linear(inputs, packed).float(), expected, 1e-5 if dtype == torch.float32 else 5e-2)


def test_a_matrix_that_is_not_contiguous_is_packed(kernels: ReferenceKernels) -> None:
    weight = random(16, 24).T
    inputs = random(5, 16)
    close(kernels.linear(inputs, kernels.pack_linear([LinearSegment(weight=weight)])), inputs @ weight.T)


def test_without_packing_the_product_is_the_same(kernels: ReferenceKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise RuntimeError("not in this build")

    weight, inputs = random(12, 16), random(5, 16)
    packed = kernels.linear(inputs, kernels.pack_linear([LinearSegment(weight=weight)]))
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", missing)
    plain = ReferenceKernels("cpu")
    assert plain.embedding_bytes((12, 16), "float32", is_head=True) == plain.packed_bytes((12, 16), "float32")
    product = plain.pack_linear([LinearSegment(weight=weight)])
    assert product.weight is weight
    close(plain.linear(inputs, product), packed)


def test_segments_of_different_input_sizes_are_refused(kernels: ReferenceKernels) -> None:
    with pytest.raises(ValueError, match=r"input sizes \[16, 17\]"):
        kernels.pack_linear([LinearSegment(weight=random(4, 16)), LinearSegment(weight=random(4, 17))])


def test_packing_does_not_change_what_it_is_given(kernels: ReferenceKernels) -> None:
    weight = random(12, 16)
    before = weight.clone()
    kernels.pack_linear([LinearSegment(weight=weight)])
    assert torch.equal(weight, before)


def test_norm_divides_the_sum_by_its_root_mean_square(kernels: ReferenceKernels) -> None:
    hidden, residual, weight = random(5, 12, seed=1), random(5, 12, seed=2), random(12, seed=3)
    normed, total = kernels.add_norm(hidden, residual, weight, 1e-3)
    exact = hidden.double().numpy() + residual.double().numpy()
    close(total, exact)
    close(normed, exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-3) * weight.double().numpy())
    alone, same = kernels.add_norm(hidden, None, weight, 1e-3)
    assert torch.equal(same, hidden)
    close(alone, hidden / torch.sqrt(hidden.pow(2).mean(1, keepdim=True) + 1e-3) * weight)


def test_gate_is_silu_of_the_first_half_times_the_second(kernels: ReferenceKernels) -> None:
    gate, up = random(4, 6, seed=1), random(4, 6, seed=2)
    exact = gate.double().numpy()
    close(kernels.gate(torch.cat((gate, up), 1)), exact / (1 + np.exp(-exact)) * up.double().numpy())


def test_embedding_looks_rows_up(kernels: ReferenceKernels) -> None:
    table = random(9, 4)
    packed, head = kernels.pack_embedding(table, is_head=False)
    assert head is None
    looked_up = torch.stack((table[8], table[0], table[0]))
    assert torch.equal(kernels.embed(torch.tensor([8, 0, 0]), packed, 1.0), looked_up)
    assert torch.equal(kernels.embed(torch.tensor([8, 0, 0]), packed, 3.0), looked_up * 3)
    assert torch.equal(packed, random(9, 4))


def test_the_factor_of_the_embedding_is_rounded_to_the_dtype(kernels: ReferenceKernels) -> None:
    table = torch.ones(2, 4, dtype=torch.bfloat16)
    looked_up = kernels.embed(torch.tensor([1]), table, math.sqrt(2304 + 0.3))
    assert torch.equal(looked_up, torch.full((1, 4), math.sqrt(2304 + 0.3), dtype=torch.bfloat16))


def test_the_table_is_a_head_too(kernels: ReferenceKernels) -> None:
    table, hidden = random(9, 16), random(3, 16, seed=2)
    _, head = kernels.pack_embedding(table, is_head=True)
    close(kernels.linear(hidden, head), hidden @ table.T)
    assert kernels.linear(hidden[:0], head).shape == (0, 9)


def test_logits_are_exact_numbers_within_the_cap(kernels: ReferenceKernels) -> None:
    values = random(3, 5) * 20
    capped = kernels.logits(values.clone(), 7.0)
    close(capped, 7.0 * torch.tanh(values / 7.0))
    assert kernels.logits(values.bfloat16(), None).dtype == torch.float32


@pytest.mark.parametrize("normalize", [False, True])
def test_routing_takes_the_best_experts_and_their_shares(kernels: ReferenceKernels, normalize: bool) -> None:
    scores = random(6, 8)
    everything = scores.softmax(-1)
    chosen, shares = kernels.route(scores, 3, chosen_first=False, normalize=normalize)
    assert torch.equal(chosen, scores.argsort(descending=True)[:, :3])
    picked = everything.gather(1, chosen)
    close(shares, picked / picked.sum(1, keepdim=True) if normalize else picked)
    chosen_first, own = kernels.route(scores, 3, chosen_first=True, normalize=normalize)
    assert torch.equal(chosen_first, chosen)
    close(own, scores.gather(1, chosen).softmax(-1))


def test_a_gate_of_one_score_per_row_scales_what_is_added(kernels: ReferenceKernels) -> None:
    outputs, scores, values = random(4, 6, seed=1), random(4, 1, seed=2), random(4, 6, seed=3)
    close(kernels.add_gated(outputs, scores, values), outputs + values / (1 + torch.exp(-scores)))


# ---- rotation and writing


def tables(rotary_dim: int, length: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(length).float(), 0.7 ** torch.arange(rotary_dim // 2).float())
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("rotary_dim", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pairs_of_a_head_rotate_by_the_angle_of_their_position(
    kernels: ReferenceKernels, rotary_dim: int, dtype: torch.dtype
) -> None:
    kv = pool(kernels, kv_heads=1, head_dim=8, dtype=dtype)
    batch = batch_of([(3, 20), (1, 5)])
    plan = kernels.plan(batch, kv)
    qkv = random(4, 4 * 8).to(dtype)
    original = qkv.double().view(4, 4, 8).numpy()
    cos, sin = tables(rotary_dim)
    queries = kernels.rotate_and_write(kv, 1, qkv, kernels.rotation(cos, sin, batch), plan, None, None, 0.0)

    expected = original.copy()
    half = rotary_dim // 2
    for row, position in enumerate(batch.positions.tolist()):
        for head in range(3):
            for pair in range(half):
                value = complex(original[row, head, pair], original[row, head, pair + half])
                value *= complex(float(cos[position, pair]), float(sin[position, pair]))
                expected[row, head, pair], expected[row, head, pair + half] = value.real, value.imag
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    close(queries.float(), expected[:, :2], tolerance)
    close(kv.layers[1][batch.slots, 0].float(), expected[:, 2:3], tolerance)
    close(kv.layers[1][batch.slots, 1].float(), original[:, 3:4], tolerance)


def test_queries_and_keys_are_normed_before_they_rotate(kernels: ReferenceKernels) -> None:
    kv = pool(kernels, kv_heads=1, head_dim=8)
    batch = batch_of([(2, 2)])
    plan = kernels.plan(batch, kv)
    qkv = random(2, 4 * 8)
    heads = qkv.clone().view(2, 4, 8)
    q_norm, k_norm = random(8, seed=1), random(8, seed=2)
    still = torch.ones(64, 4), torch.zeros(64, 4)
    queries = kernels.rotate_and_write(kv, 0, qkv, kernels.rotation(*still, batch), plan, q_norm, k_norm, 1e-3)

    def normed(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return values / torch.sqrt(values.pow(2).mean(-1, keepdim=True) + 1e-3) * weight

    close(queries, normed(heads[:, :2], q_norm))
    close(kv.layers[0][batch.slots, 0], normed(heads[:, 2:3], k_norm))
    close(kv.layers[0][batch.slots, 1], heads[:, 3:])
