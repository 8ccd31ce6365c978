"""The indexer's queries and keys in fp8, as DeepSeek-V3.2 computes them.

Both are rotated by a Hadamard matrix, which spreads what a few channels hold over all and changes no dot product.
Then each vector has float8_e4m3 values and a scale that is a power of two. A key is stored as bytes: its values,
then its scale in float32.

Source: rotate_activation in inference/model.py, act_quant in inference/kernel.py of DeepSeek-V3.2-Exp.
"""

import torch
from torch import Tensor

from hiscore.kernels.fp8 import FP8_LARGEST
from hiscore.models.deepseek.config import Indexer

SMALLEST_PEAK = 1e-4
"""Lower bound on the peak by which a vector is scaled, of the source."""
SCALE_BYTES = 4


def stored_key(a: Indexer, dtype: torch.dtype) -> tuple[int, torch.dtype]:
    """Width and dtype of a key as it is stored, for a model of `dtype`."""
    return (a.head_dim + SCALE_BYTES, torch.uint8) if a.fp8 else (a.head_dim, dtype)


def rotate(x: Tensor) -> Tensor:
    """Multiply by the orthogonal Hadamard matrix, in float32 at least.

    Args:
        x: [..., D]; D is a power of two.

    Returns:
        [..., D], in x's dtype.
    """
    width = x.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    matrix = torch.ones((1, 1), dtype=wide, device=x.device)
    while len(matrix) < width:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    turned: Tensor = (x.to(wide) @ matrix) * width**-0.5
    return turned.to(x.dtype)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise vectors.

    Args:
        x: [..., D].

    Returns:
        float8_e4m3fn [..., D] and float32 [...], a power of two: their product is nearly x.
    """
    wide = x.float()
    peaks = wide.abs().amax(dim=-1).clamp_min(SMALLEST_PEAK)
    fraction, exponent = torch.frexp(peaks * (1 / FP8_LARGEST))
    # The least power of two that is not smaller; frexp's fractions are in [0.5, 1).
    scales = torch.ldexp(torch.ones_like(peaks), exponent - (fraction == 0.5).int())
    values = (wide / scales[..., None]).clamp(-FP8_LARGEST, FP8_LARGEST)
    return values.to(torch.float8_e4m3fn), scales


def pack(values: Tensor, scales: Tensor) -> Tensor:
    """Keys as they are stored, uint8 [..., D + 4]."""
    return torch.cat((values.view(torch.uint8), scales[..., None].contiguous().view(torch.uint8)), dim=-1)


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Values, float8_e4m3fn [..., D], and scales, float32 [...], of stored keys, [..., D + 4]."""
    values, scales = keys[..., :-SCALE_BYTES], keys[..., -SCALE_BYTES:]
    return values.view(torch.float8_e4m3fn), scales.contiguous().view(torch.float32)[..., 0]


def views(keys: Tensor) -> tuple[Tensor, Tensor]:
    """As `unpack`, in the memory of keys [N, D + 4] itself, for kernels."""
    return keys[:, :-SCALE_BYTES].view(torch.float8_e4m3fn), keys.view(torch.float32)[:, -1]
