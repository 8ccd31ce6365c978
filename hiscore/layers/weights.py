"""The weights of a model on its device: projections, in fp8 too, and what a layer holds."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hiscore.kernels.fp8 import LARGEST, SMALLEST_PEAK

FP8 = torch.float8_e4m3fn
MULTIPLE = 16
"""What the product's inner and outer sizes must be multiples of."""


class Projection(Protocol):
    """A matrix product with what a step of `Ops` made for it: a Tensor, under fp8 a Quantised."""

    def __call__(self, x: Any) -> Tensor: ...


@dataclass(frozen=True)
class Linear:
    """A projection: weight [out, in], bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Quantised:
    """values float8_e4m3fn [rows, width] times scales float32 [rows, 1]."""

    values: Tensor
    scales: Tensor


def quantise(x: Tensor) -> Quantised:
    """The rows of x [rows, width], each scaled so that its largest value just fits."""
    y = x.float()
    peak = y.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_PEAK)
    # By a factor rather than a division for each value; kernels take the same two roundings.
    return Quantised((y * (peak.reciprocal() * LARGEST)).to(FP8), peak * (1 / LARGEST))


@dataclass(frozen=True)
class Fp8Linear:
    """A projection in fp8: weight [out, in], bias bfloat16 [out] or None; its result is bfloat16."""

    weight: Quantised
    bias: Tensor | None = None

    def __call__(self, x: Quantised) -> Tensor:
        if not len(x.values):
            # The product takes no empty operand.
            return torch.empty((0, len(self.weight.values)), dtype=torch.bfloat16, device=x.values.device)
        out = torch._scaled_mm(
            x.values,
            self.weight.values.t(),
            scale_a=x.scales,
            scale_b=self.weight.scales.t(),
            out_dtype=torch.bfloat16,
            # Sums as the tensor cores keep them: rounded far less than the operands were.
            use_fast_accum=True,
        )
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class LayerWeights:
    """One layer; norms that a family lacks are None."""

    input_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Projection
    post_attention_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection
    post_mlp_norm: Tensor | None


@dataclass(frozen=True)
class Weights:
    """A whole checkpoint on one device, in one dtype but for projections in fp8."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
    """[vocabulary, hidden] for a causal LM, [labels, hidden] for a classifier."""
