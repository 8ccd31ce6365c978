"""Rotary position embeddings, with transformers' own frequencies (linear, llama3 and yarn scaling included)."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class Rope:
    """One kind of rotary embedding of a model: its frequencies, float32 [head_dim / 2], and a scale."""

    def __init__(self, config: Any, kind: str | None, head_dim: int, device: torch.device) -> None:
        parameters = config.rope_parameters[kind] if kind else config.rope_parameters
        if parameters.get("rope_type", "default") == "default":
            exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            self.frequencies, self.scale = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
        else:
            extra = {"layer_type": kind} if kind else {}
            initialise = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
            self.frequencies, self.scale = initialise(config, torch.device("cpu"), **extra)
        self.frequencies = self.frequencies.to(device)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 [T, 1, head_dim / 2], for positions int [T]."""
        angles = positions.float()[:, None, None] * self.frequencies
        return angles.cos() * self.scale, angles.sin() * self.scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [T, heads, head_dim]; the halves of a head form the pairs, as in transformers."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
