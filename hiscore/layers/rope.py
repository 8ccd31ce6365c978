"""Rotary position embeddings, with transformers' own frequencies (linear, llama3 and yarn scaling included)."""

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class Rope:
    """One kind of rotary embedding of a model, as tables.

    cos, sin: float32 [context, head_dim / 2], scaled; the halves of a head form the pairs, as in transformers.
    """

    def __init__(self, config: Any, kind: str | None, head_dim: int, device: torch.device) -> None:
        parameters = config.rope_parameters[kind] if kind else config.rope_parameters
        if parameters.get("rope_type", "default") == "default":
            exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            frequencies, scale = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
        else:
            extra = {"layer_type": kind} if kind else {}
            initialise = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
            frequencies, scale = initialise(config, torch.device("cpu"), **extra)
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        angles = positions[:, None] * frequencies
        self.cos = (angles.cos() * scale).to(device)
        self.sin = (angles.sin() * scale).to(device)
