"""Rotary tables of a checkpoint, whose parameters transformers has not looked at before."""

from typing import Any

import torch

from hiscore.layers.rope import Rope
from hiscore.models.errors import UnsupportedCheckpoint


def make_rope(
    config: Any,
    kind: str | None,
    head_dim: int,
    device: torch.device,
    length: int,
    rotated_dim: int | None = None,
    scale_queries: bool = False,
) -> Rope:
    """Compute the tables; raise `UnsupportedCheckpoint` if a parameter is missing, or no number."""
    try:
        return Rope(config, kind, head_dim, device, length, rotated_dim, scale_queries)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedCheckpoint(
            f"transformers computes no rotary embeddings of rope_parameters {config.rope_parameters} and head_dim "
            f"{getattr(config, 'head_dim', None)}: {error!r}"
        ) from error
