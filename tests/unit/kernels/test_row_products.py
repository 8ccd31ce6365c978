"""Products of a step's rows against PyTorch. Without a GPU the kernel runs in Triton's interpreter, on the CPU."""

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import row_products
from tests.support.layers import random
from tests.support.products import assert_equal_pytorch, operands


@pytest.mark.parametrize("inputs", [24, 1024, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rows", [5, row_products.MAX_ROWS])
def test_products_of_some_rows_equal_pytorch(rows: int, inputs: int) -> None:
    """Bound: float32 sums of up to 3,000 products, in another order."""
    assert_equal_pytorch(row_products.multiply, rows, inputs, bound=2e-5)
    x, weight, _ = operands(rows, inputs)
    # Control: the sum of one part of the inputs less.
    short = torch.nn.functional.linear(x[:, 16:], weight[:, 16:])
    assert (row_products.multiply(x, weight) - short).abs().max() > 1e-3


def test_a_row_is_the_same_among_any_number() -> None:
    x, weight = random(row_products.MAX_ROWS, 100, seed=1), random(20, 100, seed=2)
    all_rows = row_products.multiply(x, weight)
    for rows in (5, 11):
        assert torch.equal(row_products.multiply(x[:rows], weight), all_rows[:rows])


def test_rows_need_contiguous_tensors() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        row_products.multiply(random(5, 48)[:, :24], random(20, 24))
