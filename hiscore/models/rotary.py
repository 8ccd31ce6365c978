"""Rotary tables of a checkpoint, whose parameters transformers has not looked at before."""

from typing import Any

from hiscore.layers.rope import Rope
from hiscore.models.errors import UnsupportedCheckpoint


def make_rope(config: Any, *given: Any) -> Rope:
    """Make a `Rope`; raise `UnsupportedCheckpoint` if a parameter of the config is missing, or no number."""
    try:
        return Rope(config, *given)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedCheckpoint(
            f"transformers computes no rotary embeddings of rope_parameters {config.rope_parameters} and head_dim "
            f"{getattr(config, 'head_dim', None)}: {error!r}"
        ) from error
