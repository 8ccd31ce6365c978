"""Matrices in 8 bits with a scale for each row, and projections of them.

A projection in 8 bits multiplies a quantised weight, with a scale for each output, by inputs that are quantised as
they are computed, with a scale for each token.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from hiscore.kernels.eight_bits import (
    FP8_FORMAT,
    FP8_LARGEST,
    INT8_FORMAT,
    INT8_LARGEST,
    SMALLEST_PEAK,
)
from hiscore.layers.products import linear

FP8 = torch.float8_e4m3fn
ALIGNMENT = 16
"""Both sizes of a weight in 8 bits must be multiples of this."""
EXACT_INPUTS = 1024
"""So many products of two whole numbers up to 127 add up to less than 2**24: float32 has every such number."""
INT8_INPUTS = (2**31 - 1) // 127**2
"""Most inputs of a projection in int8: its sums fit 32 bits whatever the values are."""


class EightBits(Enum):
    """A format of 8 bits, by its name in the settings."""

    FP8 = "fp8"
    INT8 = "int8"

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return FP8 if self is EightBits.FP8 else torch.int8

    @property
    def of_kernels(self) -> int:
        """See `kernels.eight_bits`."""
        return FP8_FORMAT if self is EightBits.FP8 else INT8_FORMAT

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability that a GPU needs for it."""
        return (8, 9) if self is EightBits.FP8 else (9, 0)


@dataclass(frozen=True)
class Quantised:
    """A matrix in 8 bits, with a scale for each row: values times scales.

    An outlier costs only its own row precision, and no row's result depends on another row.
    """

    values: Tensor
    """float8_e4m3fn or int8 [rows, width]"""
    scales: Tensor
    """float32 [rows, 1]; in int8 infinite for a row with a value that is not finite."""


def quantise(x: Tensor, into: EightBits) -> Quantised:
    """Scale each row of x [rows, width] so that its largest value is the format's largest, and round."""
    return _to_fp8(x.float()) if into is EightBits.FP8 else _to_int8(x.float())


def _to_fp8(x: Tensor) -> Quantised:
    peak = x.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_PEAK)
    # Multiplied rather than divided, as in the kernels: the same two roundings, the same bits.
    return Quantised((x * (peak.reciprocal() * FP8_LARGEST)).to(FP8), peak * (1 / FP8_LARGEST))


def _to_int8(x: Tensor) -> Quantised:
    infinity = float("inf")
    # int8 has no NaN: the scale shows what is not finite.
    size = x.abs().nan_to_num(nan=infinity, posinf=infinity)
    scale = size.amax(dim=1, keepdim=True).clamp_min(SMALLEST_PEAK) * (1 / INT8_LARGEST)
    scaled = torch.where(scale < infinity, x / scale, 0)
    return Quantised(torch.round(scaled).to(torch.int8), scale)


@dataclass(frozen=True)
class Fp8Linear:
    """A projection in fp8. Its result is bfloat16."""

    weight: Quantised
    """[out, in]"""
    bias: Tensor | None = None
    """bfloat16 [out]"""
    reads: ClassVar[EightBits | None] = EightBits.FP8

    def __call__(self, x: Quantised) -> Tensor:
        if not len(x.values):
            # _scaled_mm does not take an empty operand.
            return torch.empty((0, len(self.weight.values)), dtype=torch.bfloat16, device=x.values.device)
        out = torch._scaled_mm(
            x.values,
            self.weight.values.t(),
            scale_a=x.scales,
            scale_b=self.weight.scales.t(),
            out_dtype=torch.bfloat16,
            # The tensor cores' own accumulation rounds far less than the operands were rounded.
            use_fast_accum=True,
        )
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class Int8Linear:
    """A projection in int8. Its sums are exact, so its bits depend neither on other rows nor on the device."""

    weight: Quantised
    """[out, in]"""
    dtype: torch.dtype
    """Of the result."""
    bias: Tensor | None = None
    """[out], of that dtype."""
    reads: ClassVar[EightBits | None] = EightBits.INT8

    def __call__(self, x: Quantised) -> Tensor:
        if x.values.is_cuda:
            from hiscore.kernels import int8

            weight = self.weight
            return int8.multiply(x.values, x.scales, weight.values, weight.scales, self.bias, self.dtype)
        return self.reference(x)

    def reference(self, x: Quantised) -> Tensor:
        """The same in PyTorch, to the bit."""
        sums = exact_product(x.values, self.weight.values).float()
        out = (sums * x.scales * self.weight.scales.t()).to(self.dtype)
        return out if self.bias is None else out.add_(self.bias)


def exact_product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T of whole numbers, without rounding.

    Products of int8 on a CPU may saturate, depending on its instructions. Sums in float32 that never exceed 2**24
    are exact on every one.

    Args:
        x: int8 [rows, in], from -127 to 127.
        weight: int8 [out, in], likewise.

    Returns:
        int32 [rows, out].
    """
    sums = torch.zeros((len(x), len(weight)), dtype=torch.int32, device=x.device)
    for begin in range(0, x.shape[1], EXACT_INPUTS):
        columns = slice(begin, begin + EXACT_INPUTS)
        sums += linear(x[:, columns].float(), weight[:, columns].float()).to(torch.int32)
    return sums
