"""Products of few rows against PyTorch. Without a GPU the kernel runs in Triton's interpreter, on the CPU."""

import pytest
import torch

from hiscore.kernels import gemv
from hiscore.layers.ops import Ops
from hiscore.layers.weights import Linear
from tests.support.layers import random

OUTPUTS = 38


@pytest.mark.parametrize("inputs", [24, 1024, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rows", [1, 3, gemv.GEMV_MAX_ROWS])
def test_products_of_few_rows_equal_pytorch(rows: int, inputs: int) -> None:
    """Bound: float32 sums of up to 3,000 products, in another order."""
    x, weight = random(rows, inputs, seed=1), random(OUTPUTS, inputs, seed=2) / inputs**0.5
    bias = random(OUTPUTS, seed=3)
    for offset in (None, bias):
        expected = torch.nn.functional.linear(x, weight, offset)
        torch.testing.assert_close(gemv.multiply(x, weight, offset), expected, atol=1e-5, rtol=1e-5)
    for gelu, activation in enumerate(("silu", "gelu_pytorch_tanh")):
        expected = Ops(1, 1, 2, 1e-6, activation).gate(Linear(weight), x)
        torch.testing.assert_close(gemv.multiply(x, weight, gelu=gelu), expected, atol=1e-5, rtol=1e-5)
    norm, onto = random(inputs, seed=4), random(rows, OUTPUTS, seed=5)
    ops, read = Ops(1, 1, 2, 1e-6, "silu"), gemv.Normed(x, norm, 1e-6)
    normed = ops._norm(x, norm, torch.float32)
    torch.testing.assert_close(gemv.multiply(read, weight), normed @ weight.T, atol=1e-5, rtol=1e-5)
    expected = ops.gate(Linear(weight), normed)
    torch.testing.assert_close(gemv.multiply(read, weight, gelu=False), expected, atol=1e-5, rtol=1e-5)
    expected = onto + torch.nn.functional.linear(x, weight, bias)
    gemv.multiply(x, weight, bias, onto)
    torch.testing.assert_close(onto, expected, atol=1e-5, rtol=1e-5)
    for row in range(rows):  # in one order, however many there are
        alone = gemv.multiply(x[row : row + 1], weight)
        torch.testing.assert_close(gemv.multiply(x, weight)[row : row + 1], alone, atol=0, rtol=0)
