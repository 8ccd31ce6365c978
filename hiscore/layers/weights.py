"""Weights on the device: projections, in fp8 too, and the tensors of a layer."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from hiscore.kernels.fp8 import LARGEST, SMALLEST_PEAK
from hiscore.layers.products import linear

FP8 = torch.float8_e4m3fn
FP8_ALIGNMENT = 16
"""Both sizes of an fp8 weight must be multiples of this."""


class Projection(Protocol):
    """A linear layer; reads a Tensor, or in fp8 a `Quantised`."""

    fp8: ClassVar[bool]

    def __call__(self, x: Any) -> Tensor: ...


@dataclass(frozen=True)
class Linear:
    """A projection in the model's dtype."""

    weight: Tensor
    """[out, in]"""
    bias: Tensor | None = None
    """[out]"""
    fp8: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Quantised:
    """A matrix in fp8, with a scale for each row: values times scales.

    An outlier costs only its own row precision, and no row's result depends on another row.
    """

    values: Tensor
    """float8_e4m3fn [rows, width]"""
    scales: Tensor
    """float32 [rows, 1]"""


def quantise(x: Tensor) -> Quantised:
    """Scale each row of x [rows, width] so that its largest value is float8's largest, and round."""
    y = x.float()
    peak = y.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_PEAK)
    # Multiplied rather than divided, as in the kernels: the same two roundings, the same bits.
    return Quantised((y * (peak.reciprocal() * LARGEST)).to(FP8), peak * (1 / LARGEST))


@dataclass(frozen=True)
class Fp8Linear:
    """A projection in fp8. Its result is bfloat16."""

    weight: Quantised
    """[out, in]"""
    bias: Tensor | None = None
    """bfloat16 [out]"""
    fp8: ClassVar[bool] = True

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
class Scales:
    """Of weights in fp8, for products of `scaled_fp8`: a block of a weight is its values times a scale."""

    of_blocks: Tensor
    """float32 [..., blocks of rows, blocks of columns]; the last of each may be smaller."""
    rows: int
    """Of a block."""
    columns: int
    """Of a block, of `scaled_fp8.COLUMNS`."""
    powers_of_two: bool
    """Whether scales are powers of two; then those of activations must be so, too."""

    def __getitem__(self, index: int) -> "Scales":
        """Those of one of several weights."""
        return replace(self, of_blocks=self.of_blocks[index])


@dataclass(frozen=True)
class Mlp:
    """A gated MLP of F neurons."""

    gate_up: Projection
    """[2 F, hidden]: gate, then up."""
    down: Projection
    """[hidden, F]"""


@dataclass(frozen=True)
class Routing:
    """How experts are chosen and weighted.

    By softmax: the `per_token` experts of the largest logits, with their probabilities among all experts or,
    normalised, among the chosen ones. By sigmoid (DeepSeek): only experts of the best groups are candidates; a
    group is as good as the sum of its two best experts; a correction affects the choice but not the weights.
    """

    per_token: int
    normalise: bool
    """Whether a token's weights add up to 1 before `scale` multiplies them."""
    sigmoid: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1


@dataclass(frozen=True)
class Experts:
    """A layer's router and experts, each an MLP of F neurons.

    The router is for all E experts. Of a model on several ranks, each holds some of them, and so of the tensors
    gate_up, down and their biases.
    """

    routing: Routing
    activation: str
    """See `activations.gated`."""
    router: Tensor
    """float32 [E, hidden]"""
    router_bias: Tensor | None
    """float32 [E]"""
    correction: Tensor | None
    """float32 [E]; with sigmoid alone."""
    gate_up: Tensor
    """[E, 2 F, hidden]: gate, then up."""
    gate_up_bias: Tensor | None
    """[E, 2 F]"""
    down: Tensor
    """[E, hidden, F]"""
    down_bias: Tensor | None
    """[E, hidden]"""
    shared: Mlp | None
    """For every token."""
    first: int = 0
    """Of the experts held."""
    gate_up_scales: Scales | None = None
    """Where gate_up is float8_e4m3fn."""
    down_scales: Scales | None = None
    """Where down is."""

    @property
    def is_part(self) -> bool:
        """Whether other ranks hold some of the experts."""
        return len(self.gate_up) < len(self.router)


@dataclass(frozen=True)
class LayerWeights:
    """One layer; norms that the family does not have are None.

    Attributes:
        input_norm: float32 [hidden], for the input of attention.
        qkv: [(heads + 2 kv_heads) head_dim, hidden].
        q_norm, k_norm: float32 [head_dim], or [heads head_dim] and [kv_heads head_dim]: of all heads together.
        sinks: float32 [heads], see `attention.base.AttentionShape`.
        output: [hidden, heads head_dim].
        post_attention_norm: float32 [hidden], for the output of attention.
        mlp_norm: float32 [hidden], for the input of the MLP.
        mlp: Or experts.
        post_mlp_norm: float32 [hidden], for the output of the MLP.
    """

    input_norm: Tensor | None
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Projection
    post_attention_norm: Tensor | None
    mlp_norm: Tensor | None
    mlp: Mlp | Experts
    post_mlp_norm: Tensor | None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Weights:
    """A whole checkpoint on one device; only projections may be fp8."""

    embedding: Tensor
    """[vocabulary, hidden]"""
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    """float32 [hidden]"""
    head: Tensor
    """[vocabulary, hidden] for a causal LM, [labels, hidden] for a classifier."""
