"""Rotary position embeddings, with transformers' frequencies (scaled by linear, llama3, yarn or longrope too)."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def context_length(config: Any) -> int:
    """Number of positions of a model with this config of transformers.

    They are max_position_embeddings, unless YaRN stretches the original context further: Qwen's documentation adds
    YaRN to a config and leaves max_position_embeddings as it was.
    """
    longest = int(config.max_position_embeddings)
    rope = config.rope_parameters
    if rope.get("rope_type") == "yarn":
        longest = max(longest, int((rope.get("factor") or 1) * rope["original_max_position_embeddings"]))
    return longest


def original_context(config: Any) -> int | None:
    """The longest sequence that longrope's short factors are for; None: no longrope.

    Longer sequences have other frequencies throughout.
    """
    rope = config.rope_parameters
    return int(rope["original_max_position_embeddings"]) if rope.get("rope_type") == "longrope" else None


class Rope:
    """Tables of one kind of rotary embedding. A pair is a dimension of a head's first half and one of its second.

    `cos` and `sin` are float32 [length, head_dim / 2], with the scaling's attention factor. Pairs beyond the
    rotated dimensions stay as they are. With longrope, if `length` exceeds the original context, they are [2
    length, ...]: the second half is for sequences that exceed it, too. `query_scales` are float32 [length].
    """

    query_scales: Tensor | None = None

    def __init__(
        self,
        config: Any,
        kind: str | None,
        head_dim: int,
        device: torch.device,
        length: int,
        rotated_dim: int | None = None,
        scale_queries: bool = False,
    ) -> None:
        """Compute the tables.

        Args:
            kind: Key of rope_parameters where layers have different ones, else None.
            head_dim: Dimensions of a head, or of that part of it which has positions.
            rotated_dim: Dimensions that are rotated; None: all.
            scale_queries: True if queries beyond the original context are scaled, as in Llama 4.
        """
        parameters = config.rope_parameters[kind] if kind else config.rope_parameters
        if parameters.get("rope_type", "default") == "default":
            dim = rotated_dim or head_dim
            exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
            frequencies, scale = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
        else:
            extra = {"layer_type": kind} if kind else {}
            initialise = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
            frequencies, scale = initialise(config, torch.device("cpu"), **extra)
        positions = torch.arange(length, dtype=torch.float32)
        angles = positions[:, None] * frequencies
        if (
            parameters.get("rope_type") == "longrope"
            and length > parameters["original_max_position_embeddings"]
        ):
            long_frequencies, _ = initialise(config, torch.device("cpu"), seq_len=length, **extra)
            angles = torch.cat((angles, positions[:, None] * long_frequencies))
        untouched = (0, head_dim // 2 - len(frequencies))
        self.cos = torch.nn.functional.pad(angles.cos() * scale, untouched, value=1.0).to(device)
        self.sin = torch.nn.functional.pad(angles.sin() * scale, untouched).to(device)
        if scale_queries:
            steps = torch.floor(positions / parameters["original_max_position_embeddings"])
            scales = 1 + parameters["llama_4_scaling_beta"] * torch.log(1 + steps)
            self.query_scales = scales.to(device)


def rotary_order(head_dim: int, rotated_dim: int, interleaved: bool) -> Tensor | None:
    """Order of a head's dimensions that puts one of each rotary pair into either half, int64 [head_dim].

    Scores of queries with keys stay the same if both are reordered, so it is done once, to the weights. The first
    `rotated_dim` dimensions are rotated, and interleaved pairs are neighbours. None: nothing is to be done.
    """
    rotated, rest = torch.arange(rotated_dim), torch.arange(rotated_dim, head_dim)
    first, second = (rotated[0::2], rotated[1::2]) if interleaved else rotated.chunk(2)
    half = len(rest) // 2
    order = torch.cat((first, rest[:half], second, rest[half:]))
    return None if torch.equal(order, torch.arange(head_dim)) else order
