"""The steps between matrix products, in plain torch, with transformers' own order of roundings."""

import torch
from torch import Tensor

LATENT_EPS = 1e-6
"""Of the norms inside attention and indexer, whatever the config says of the others."""


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """What sums and rotations are computed in: float32, for a float64 model float64."""
    return torch.promote_types(dtype, torch.float32)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension: normalised in float32, scaled in x's dtype."""
    y = x.float()
    return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the pairs of the last dimension; pairs are neighbours if interleaved, else x's two halves.

    x [..., 2 n]; cos, sin: float32, broadcastable to [..., n]. The result holds all first members, then all second
    ones, in both cases: a fixed order of dimensions, which no dot product of two rotated vectors notices.
    """
    wide = at_least_float32(x.dtype)
    y, cos, sin = x.to(wide), cos.to(wide), sin.to(wide)
    first, second = (y[..., 0::2], y[..., 1::2]) if interleaved else y.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
