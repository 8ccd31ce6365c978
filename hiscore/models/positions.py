"""What a config of transformers says of how each layer rotates queries and keys."""

from collections.abc import Sequence
from typing import Any

from hiscore.models.family import DecoderFamily


def rope_kinds(family: DecoderFamily, config: Any, windows: Sequence[int | None]) -> tuple[str | bool, ...]:
    """For each layer, its key in rope_parameters where there are several; else whether it rotates."""
    kinds = config.layer_types if family.ropes_by_layer_type else [True] * len(windows)
    rotates: Sequence[Any] = [True] * len(windows)
    if family.unrotated == "no_rope_layers":
        rotates = config.no_rope_layers
    # EXAONE 4 without windows rotates in all layers.
    elif family.unrotated == "full_attention" and config.sliding_window is not None:
        rotates = windows
    return tuple(bool(turns) and kind for turns, kind in zip(rotates, kinds, strict=True))
