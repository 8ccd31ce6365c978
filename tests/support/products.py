"""What kernels that multiply the rows of a step by a weight have to give."""

from collections.abc import Callable

import torch
from torch import Tensor

from hiscore.layers.torch_ops import TorchOps
from hiscore.layers.weights import Linear
from tests.support.layers import random

OUTPUTS = 38


def operands(rows: int, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    weight = random(OUTPUTS, inputs, seed=2) / inputs**0.5
    return random(rows, inputs, seed=1), weight, random(OUTPUTS, seed=3)


def assert_equal_pytorch(multiply: Callable[..., Tensor], rows: int, inputs: int, bound: float) -> None:
    """With and without a bias, and as gate and up of an MLP."""
    x, weight, bias = operands(rows, inputs)
    for offset in (None, bias):
        expected = torch.nn.functional.linear(x, weight, offset)
        torch.testing.assert_close(multiply(x, weight, offset), expected, atol=bound, rtol=bound)
    for gelu, activation in enumerate(("silu", "gelu_pytorch_tanh")):
        expected = TorchOps(1, 1, 2, 1e-6, activation).gate(Linear(weight), x)
        torch.testing.assert_close(multiply(x, weight, gelu=gelu), expected, atol=bound, rtol=bound)
