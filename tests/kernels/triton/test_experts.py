import pytest
import torch
from torch import Tensor

from limelight.kernels.reference import ReferenceExperts, ReferenceKernels
from limelight.kernels.triton import experts as triton_experts

pytestmark = pytest.mark.usefixtures("one_torch_thread")

REFERENCE = ReferenceKernels("cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_experts", "num_chosen"), [(4, 1), (5, 5), (60, 4), (128, 8)])
@pytest.mark.parametrize(("chosen_first", "normalize"), [(True, False), (False, True), (False, False)])
def test_rows_take_the_experts_of_the_reference(
    num_experts: int, num_chosen: int, chosen_first: bool, normalize: bool
) -> None:
    scores = normal(6, num_experts) * 3
    expected = REFERENCE.route(scores, num_chosen, chosen_first=chosen_first, normalize=normalize)
    chosen, shares = triton_experts.route(scores, num_chosen, chosen_first=chosen_first, normalize=normalize)
    assert torch.equal(chosen, expected[0])
    torch.testing.assert_close(shares, expected[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("chosen_first", [True, False])
def test_of_equal_experts_the_first_comes_first(chosen_first: bool) -> None:
    scores = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, -1e4, -2e4, -3e4]], dtype=torch.float16)
    chosen, _ = triton_experts.route(scores, 6, chosen_first=chosen_first, normalize=False)
    assert chosen.tolist() == [[1, 2, 4, 0, 3, 5]]


def test_scores_that_are_no_numbers_choose_experts_that_exist() -> None:
    chosen, _ = triton_experts.route(torch.full((2, 5), torch.nan), 3, chosen_first=False, normalize=True)
    assert chosen.min() >= 0
    assert chosen.max() < 5


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_are_those_of_the_reference(tokens: int, has_bias: bool) -> None:
    num_experts, inner, size = 6, 36, 80
    packed = ReferenceExperts(
        gate_up=normal(num_experts, 2 * inner, size) / 9,
        down=normal(num_experts, size, inner, seed=1) / 6,
        gate_up_bias=normal(num_experts, 2 * inner, seed=2) if has_bias else None,
        down_bias=normal(num_experts, size, seed=3) if has_bias else None,
        activation="silu",
        limit=2.0 if has_bias else None,
    )
    inputs = normal(tokens, size, seed=4)
    # Experts 1 and 5 get no rows.
    chosen = torch.tensor([0, 2, 3, 4])[torch.argsort(normal(tokens, 4, seed=5), dim=1)[:, :2]]
    shares = normal(tokens, 2, seed=6).softmax(-1)
    expected = REFERENCE.experts(inputs, chosen, shares, packed)
    torch.testing.assert_close(triton_experts.experts(inputs, chosen, shares, packed), expected, rtol=1e-4, atol=1e-5)


def test_an_expert_may_have_many_tiles_and_rows_of_its_matrix_may_be_filled_up() -> None:
    rows, weight = normal(150, 20), normal(2, 70, 24, seed=1)
    ends = torch.tensor([0, 150], dtype=torch.int32)
    product = triton_experts.grouped_product(rows, weight, None, ends)
    torch.testing.assert_close(product, rows @ weight[1, :, :20].T, rtol=1e-4, atol=1e-5)
