"""Products in fp8 of activations and weights that both have a scale for each block of columns.

As DeepSeek-V3 was trained: weights e4m3 with a scale for each 128x128 block, activations rounded to e4m3 with one
for each row and 128 columns. Source: inference/kernel.py of DeepSeek-V3.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hiscore.kernels.fp8 import FP8_LARGEST, SMALLEST_PEAK
from hiscore.layers.fp8 import FP8
from hiscore.layers.weights import Scales

COLUMNS = (32, 64, 128)
"""Widths of a block that the kernels take."""
MANTISSA = 0x7FFFFF
"""Bits of a float32 below its exponent."""


@dataclass(frozen=True)
class ScaledLinear:
    """A projection in fp8 that rounds its input itself. Its result has the input's dtype."""

    values: Tensor  # float8_e4m3fn [out, in]
    scales: Scales
    bias: Tensor | None = None  # [out]
    reads_fp8: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            out = multiply(x, self.values, self.scales)
        else:
            from hiscore.layers import scaled_fp8_triton

            out = scaled_fp8_triton.multiply(x, self.values, self.scales)
        return out if self.bias is None else out + self.bias


def multiply(x: Tensor, values: Tensor, scales: Scales) -> Tensor:
    """x weight^T in PyTorch: what the CPU computes and the kernels are tested against."""
    rounded, of_rows = quantise(x, scales.columns, scales.powers_of_two)
    each = of_rows.repeat_interleave(scales.columns, dim=1)[:, : x.shape[1]]
    return ((rounded.float() * each) @ dequantise(values, scales).T).to(x.dtype)


def dequantise(values: Tensor, scales: Scales) -> Tensor:
    """The weight in float32, [out, in]."""
    rows, columns = values.shape
    each = scales.of_blocks.repeat_interleave(scales.rows, dim=0)[:rows]
    return values.float() * each.repeat_interleave(scales.columns, dim=1)[:, :columns]


def quantise(x: Tensor, columns: int, powers_of_two: bool) -> tuple[Tensor, Tensor]:
    """Round each row's blocks of columns to float8_e4m3fn, scaled so that none exceeds its largest number.

    The last block may have fewer columns. Scales, float32 [rows, blocks], may be rounded up to powers of two.
    """
    rows, width = x.shape
    blocks = -(-width // columns)
    y = torch.nn.functional.pad(x.float(), (0, blocks * columns - width)).view(rows, blocks, columns)
    peaks = y.abs().amax(dim=2, keepdim=True).clamp_min(SMALLEST_PEAK)
    # Multiplied rather than divided, as in the kernel: the same two roundings, the same bits.
    scales, factors = peaks * (1 / FP8_LARGEST), peaks.reciprocal() * FP8_LARGEST
    if powers_of_two:
        scales = ((scales.view(torch.int32) + MANTISSA) & ~MANTISSA).view(torch.float32)
        factors = scales.reciprocal()
    return (y * factors).to(FP8).flatten(1)[:, :width], scales[..., 0]
