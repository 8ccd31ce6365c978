"""Inputs of a layer's operations: random tensors, given rotary tables, layers of nothing but norms."""

from typing import Any

import torch
from torch import Tensor, empty

from hiscore.layers.rope import Rope
from hiscore.layers.weights import Experts, LayerWeights, Linear, Mlp, Routing

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


class Tables(Rope):
    """Rotary tables that are given: [context, head_dim / 2] each."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin


def experts_of(router: Tensor, gate_up: Tensor, down: Tensor, **more: Any) -> Experts:
    """Experts of which a token gets two; biases, corrections and scales are left out unless they are given."""
    given = {"routing": Routing(per_token=2, normalise=True), "activation": "silu", **more}
    return Experts(router=router, gate_up=gate_up, down=down, **given)


def layer_of(q_norm: Tensor | None, k_norm: Tensor | None) -> LayerWeights:
    nothing = empty(0)
    linear = Linear(nothing)
    return LayerWeights(nothing, linear, q_norm, k_norm, linear, None, nothing, Mlp(linear, linear), None)
