"""The gated activations of MLPs."""

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

CLAMPED_SWIGLU = "clamped_swiglu"
SWIGLU_LIMIT = 7.0
SWIGLU_ALPHA = 1.702


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """act(gate) * up of gate and up side by side, gate first: [..., 2 F] to [..., F].

    Source: `GptOssExperts._apply_gate` of transformers, for clamped_swiglu.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == CLAMPED_SWIGLU:
        gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        return (up + 1) * gate * torch.sigmoid(gate * SWIGLU_ALPHA)
    if activation == "silu":
        return silu(gate) * up
    return gelu(gate, approximate="none" if activation == "gelu" else "tanh") * up
