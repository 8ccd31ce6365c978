"""The gated activations of MLPs."""

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

CLAMPED_SWIGLU = "clamped_swiglu"
SWIGLU_LIMIT = 7.0
SWIGLU_ALPHA = 1.702


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """act(gate) * up of gate and up side by side: [..., 2 F] to [..., F].

    Args:
        gate_up: Gate first.
        activation: silu, gelu_pytorch_tanh, or GPT-OSS's clamped_swiglu (source: `GptOssExperts._apply_gate` of
            transformers).
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == CLAMPED_SWIGLU:
        gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        return (up + 1) * gate * torch.sigmoid(gate * SWIGLU_ALPHA)
    return (silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")) * up
