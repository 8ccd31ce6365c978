"""The part of a tensor that a rank reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cut:
    """Ranges of rows (the first dimension, in order) and of columns (the last of two); None: all of it."""

    rows: tuple[slice, ...] | None = None
    columns: slice | None = None

    def of(self, stored: Any) -> Tensor:
        """The part of a tensor, or of what safetensors gives for one without reading it; in memory of its own."""
        if self.rows is None and self.columns is None:
            whole: Tensor = stored[:]
            return whole
        rows = (slice(None),) if self.rows is None else self.rows
        if self.columns is None:
            return torch.cat([stored[part] for part in rows])
        return torch.cat([stored[part, self.columns] for part in rows])

    def within(self, begin: int, size: int) -> "Cut":
        """The cut of one of several tensors that are one behind another: its `size` rows begin at `begin`."""
        if self.rows is None:
            return self
        inside = [
            slice(max(part.start, begin) - begin, min(part.stop, begin + size) - begin) for part in self.rows
        ]
        return Cut(tuple(part for part in inside if part.start < part.stop), self.columns)


UNCUT = Cut()


def rows(*parts: slice) -> Cut:
    return Cut(rows=parts)


def shifted(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def scaled(part: slice, size: int) -> slice:
    """A range of things of some size, as a range of their numbers."""
    return slice(part.start * size, part.stop * size)


def narrowed(block: int, part: slice, size: int) -> int:
    """Columns of the blocks with one scale each that a rank has, where ranks divide blocks: the same on all ranks.

    Stored blocks have `block` columns, the last maybe fewer; `part` are the rank's columns, as many as each of the
    others has, of `size` altogether.
    """
    return block if (part.start, part.stop) == (0, size) else gcd(block, part.start, part.stop - part.start)


def scales_of(scales: Tensor, block: int, narrow: int, part: slice) -> Tensor:
    """The scales of a rank's columns, from [rows, blocks of `block` columns] to blocks of `narrow` columns."""
    each = scales.repeat_interleave(block // narrow, dim=1)
    return each[:, part.start // narrow : -(-part.stop // narrow)].contiguous()


def shape_of(stored: Any) -> Sequence[int]:
    """The shape of a tensor, or of what safetensors gives for one."""
    shape: Sequence[int] = stored.get_shape() if hasattr(stored, "get_shape") else stored.shape
    return list(shape)
