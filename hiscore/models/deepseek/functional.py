"""The steps between matrix products, in plain torch, with transformers' own order of roundings."""

import torch
from torch import Tensor

from hiscore.numerics import widen

LATENT_EPS = 1e-6
"""Of the norms inside attention and indexer, whatever the config says of the others."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension: normalised in float32, scaled in x's dtype."""
    y = x.float()
    return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the pairs of the last dimension; pairs are neighbours if interleaved, else x's two halves.

    x [..., 2 n]; cos, sin: float32, broadcastable to [..., n]. The result holds all first members, then all second
    ones, in both cases: a fixed order of dimensions, which no dot product of two rotated vectors notices.
    """
    y = widen(x)
    cos, sin = cos.to(y.dtype), sin.to(y.dtype)
    first, second = (y[..., 0::2], y[..., 1::2]) if interleaved else y.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
