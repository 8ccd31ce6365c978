"""What fp8 should compute, worked out in plain arithmetic: the reference for products and whole models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hiscore.layers.weights import LayerWeights, Linear, Mlp
from hiscore.models.decoder import Decoder
from hiscore.prefill.runner import TorchRunner
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.scorer import Scorer

ATTENTION, MLP = ("qkv", "output"), ("gate_up", "down")


def rounded(x: Tensor) -> Tensor:
    """x [rows, width] to float8_e4m3fn's nearest, each row scaled so that its largest value is 448; in float64.

    Three bits behind the leading one, down to exponent -6; below it the steps stay as they are there. The scaled
    values are float32, as the kernels': bfloat16 values are often exactly between two numbers, and the last bit
    of the factor decides where they go.
    """
    peaks = x.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-30)
    y = (x.float() * (1 / peaks * 448)).double()
    exponents = torch.frexp(y).exponent - 1
    steps = torch.exp2(exponents.clamp_min(-6).double() - 3)
    return torch.round(y / steps) * steps * (peaks.double() / 448)


class EmulatedLinear:
    """A projection whose weight and input are rounded to fp8 and multiplied in float64."""

    reads_fp8 = False

    def __init__(self, linear: Linear) -> None:
        self._weight = rounded(linear.weight)
        self._bias = linear.bias

    def __call__(self, x: Tensor) -> Tensor:
        out = (rounded(x) @ self._weight.T).bfloat16()
        return out if self._bias is None else out + self._bias.bfloat16()


def emulated_scorer(checkpoint: Path) -> Scorer:
    """A scorer on the CPU in bfloat16 whose projections are emulated from the float32 weights."""
    scorer = load_decoder_scorer(checkpoint, "cpu", "bfloat16", 1_024, query_cache_bytes=0)
    exact = Decoder(checkpoint, torch.device("cpu"), torch.float32).weights.layers
    assert isinstance(scorer.runner, TorchRunner)
    decoder = scorer.runner._decoder
    layers = zip(decoder.weights.layers, exact, strict=True)
    decoder.weights = replace(decoder.weights, layers=tuple(_emulated(*pair) for pair in layers))
    return scorer


def _emulated(layer: LayerWeights, exact: LayerWeights) -> LayerWeights:
    found: dict[str, Any] = {name: EmulatedLinear(getattr(exact, name)) for name in ATTENTION}
    if not isinstance(layer.mlp, Mlp):
        # Experts stay in bfloat16.
        return replace(layer, **found)
    mlp: dict[str, Any] = {name: EmulatedLinear(getattr(exact.mlp, name)) for name in MLP}
    return replace(layer, **found, mlp=Mlp(**mlp))
