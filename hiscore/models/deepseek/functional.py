"""Operations between matrix products in PyTorch, rounding where transformers rounds."""

import torch
from torch import Tensor

from hiscore.device.numerics import widen

LATENT_EPS = 1e-6
"""Epsilon of the norms inside attention and the indexer; the config's holds for all others."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension: normalise in float32, scale in x's dtype."""
    y = x.float()
    return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the pairs of the last dimension, [..., 2 n], by cos and sin, float32, broadcastable to [..., n].

    Pairs are neighbouring dimensions if interleaved, otherwise one is from each half. The result has the first of
    all pairs, then the second, in both cases: dot products of two rotated vectors do not depend on that order.
    """
    y = widen(x)
    cos, sin = cos.to(y.dtype), sin.to(y.dtype)
    first, second = (y[..., 0::2], y[..., 1::2]) if interleaved else y.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
