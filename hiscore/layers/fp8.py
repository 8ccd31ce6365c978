"""Matrices in fp8 with a scale for each row, and projections of them.

A projection in fp8 multiplies a quantised weight, with a scale for each output, by inputs that are quantised as
they are computed, with a scale for each token.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hiscore.kernels.fp8 import FP8_LARGEST, SMALLEST_PEAK

FP8 = torch.float8_e4m3fn
FP8_CAPABILITY = (8, 9)
ALIGNMENT = 16
"""Both sizes of a weight in fp8 must be multiples of this."""


@dataclass(frozen=True)
class Quantised:
    """A matrix in fp8, with a scale for each row: values times scales.

    An outlier costs only its own row precision, and no row's result depends on another row.
    """

    values: Tensor  # float8_e4m3fn [rows, width]
    scales: Tensor  # float32 [rows, 1]


def quantise(x: Tensor) -> Quantised:
    """Scale each row of x [rows, width] so that its largest value is fp8's largest, and round."""
    x = x.float()
    peak = x.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_PEAK)
    # Multiplied rather than divided, as in the kernels: the same two roundings, the same bits.
    return Quantised((x * (peak.reciprocal() * FP8_LARGEST)).to(FP8), peak * (1 / FP8_LARGEST))


@dataclass(frozen=True)
class Fp8Linear:
    """A projection in fp8. Its result is bfloat16."""

    weight: Quantised  # [out, in]
    bias: Tensor | None = None  # bfloat16 [out]
    reads_fp8: ClassVar[bool] = True

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
