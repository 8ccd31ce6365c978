"""Bytes of weights before they are loaded: the loader itself runs, on tensors without memory.

So what is planned is what is kept, whatever the loader decides, such as which weights stay in fp8.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def planned_bytes(load: Callable[[torch.device], Any]) -> int:
    """Bytes of all weights in the nest of dataclasses and tuples that a loader returns.

    Raises:
        UnsupportedCheckpoint: The loader refuses the checkpoint, unless only the values of weights show why.
    """
    return sum(_storages(load(torch.device("meta"))).values())


def _storages(weights: Any) -> dict[int, int]:
    if isinstance(weights, Tensor):
        storage = weights.untyped_storage()
        return {storage._cdata: storage.nbytes()}
    parts = (
        weights if isinstance(weights, tuple) else [getattr(weights, each.name) for each in fields(weights)]
    )
    found: dict[int, int] = {}
    for part in parts:
        if isinstance(part, Tensor | tuple) or is_dataclass(part):
            found |= _storages(part)
    return found
