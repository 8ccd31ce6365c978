"""What loaded weights take."""

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def held(value: Any) -> dict[int, int]:
    """Bytes of every tensor in nested dataclasses, each storage once."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    parts = value if isinstance(value, tuple) else [getattr(value, each.name) for each in fields(value)]
    sizes: dict[int, int] = {}
    for part in parts:
        if isinstance(part, Tensor | tuple) or is_dataclass(part):
            sizes |= held(part)
    return sizes
