"""Rotary position embeddings, with transformers' frequencies (linear, llama3 and yarn scaling included)."""

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def context_length(config: Any) -> int:
    """How many positions a model of this config of transformers has.

    They are max_position_embeddings, unless YaRN stretches the original context further: Qwen's documentation adds
    YaRN to a config and leaves max_position_embeddings as it was.
    """
    longest = int(config.max_position_embeddings)
    rope = config.rope_parameters
    if rope.get("rope_type") == "yarn":
        longest = max(longest, int((rope.get("factor") or 1) * rope["original_max_position_embeddings"]))
    return longest


class Rope:
    """Tables of one kind of rotary embedding. A pair is a dimension of a head's first half and one of its second.

    Attributes:
        cos, sin: float32 [length, head_dim / 2], with the scaling's attention factor.
    """

    def __init__(
        self, config: Any, kind: str | None, head_dim: int, device: torch.device, length: int
    ) -> None:
        """Compute the tables.

        Args:
            config: Of transformers, for rope_parameters.
            kind: Key of rope_parameters where layers have different ones, else None.
            head_dim: Dimensions that are rotated.
            device: Where the tables are kept.
            length: Positions in the tables.
        """
        parameters = config.rope_parameters[kind] if kind else config.rope_parameters
        if parameters.get("rope_type", "default") == "default":
            exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            frequencies, scale = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
        else:
            extra = {"layer_type": kind} if kind else {}
            initialise = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
            frequencies, scale = initialise(config, torch.device("cpu"), **extra)
        positions = torch.arange(length, dtype=torch.float32)
        angles = positions[:, None] * frequencies
        self.cos = (angles.cos() * scale).to(device)
        self.sin = (angles.sin() * scale).to(device)
