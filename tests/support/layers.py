"""Inputs of a layer's operations: random tensors, given rotary tables, layers of nothing but norms."""

import torch
from torch import Tensor, empty

from hiscore.layers.rope import Rope
from hiscore.layers.weights import LayerWeights, Linear, Mlp

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


class Tables(Rope):
    """Rotary tables that are given: [context, head_dim / 2] each."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin


def layer_of(q_norm: Tensor | None, k_norm: Tensor | None) -> LayerWeights:
    nothing = empty(0)
    linear = Linear(nothing)
    return LayerWeights(nothing, linear, q_norm, k_norm, linear, None, nothing, Mlp(linear, linear), None)
