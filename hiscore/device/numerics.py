"""Rules of precision that every PyTorch implementation here follows."""

import torch
from torch import Tensor


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums, softmax and rotations for a model of `dtype`: float32, for float64 float64.

    The residual stream has it too. Rounded to bfloat16 after each of a layer's two sums, it was the main reason
    why an item's score depended on how its batch was split into forwards.
    """
    return torch.promote_types(dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    return x.to(at_least_float32(x.dtype))


def softmax(logits: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax over the last dimension, with `sinks` [..., 1] as one more logit in the sum, not in the result."""
    if sinks is None:
        return logits.softmax(dim=-1)
    sinks = sinks.to(logits.dtype).expand(*logits.shape[:-1], 1)
    return torch.cat((logits, sinks), dim=-1).softmax(dim=-1)[..., :-1]


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """Squash logits into (-cap, cap) by tanh, as Gemma 2 does; None: unchanged."""
    return logits if cap is None else torch.tanh(logits / cap) * cap
