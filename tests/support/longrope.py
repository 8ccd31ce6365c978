"""A tiny checkpoint with longrope, and calls on both sides of its original context."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.checkpoints import edited_config
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import VOCABULARY, make

ORIGINAL, LONGEST = 80, 256
SHAPES = {
    "short": (70, [3, 10]),
    "long": (70, [11, 40]),
    "at the border": (79, [1, 2]),
    "both": (66, [40, 3, 15, 0, 14, 90]),
    "a long query": (100, [0, 7]),
    "no query": (0, [80, 81, 5]),
}


def make_longrope(directory: Path, **rope: Any) -> Path:
    """Write the checkpoint; rope: changes to what its config says of rotary embeddings."""
    make("phi3", directory)
    original = {"original_max_position_embeddings": ORIGINAL}
    with edited_config(directory) as config:
        # transformers moves the original context from the one place to the other.
        config |= {"max_position_embeddings": LONGEST, "sliding_window": None, **original}
        config["rope_parameters"] |= original | rope
    return directory


def both_sides() -> list[Tokens]:
    """All shapes. The first two have the same query, short with the items of one, long with the other's."""
    rng = np.random.default_rng(7)
    first, second, *others = (random_tokens(rng, *shape, VOCABULARY) for shape in SHAPES.values())
    return [first, Tokens(first.query, second.items), *others]
