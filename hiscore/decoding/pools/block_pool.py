"""A pool of numbered blocks: all or nothing, and none to two owners. Bookkeeping only: no tensor, no device."""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import PoolExhausted


class BlockPool:
    """Blocks 0 .. size - 1, allocated last in, first out."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._stack = np.arange(size - 1, -1, -1, dtype=np.int32)
        self._num_free = size
        self._allocated = np.zeros(size, np.bool_)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.size - self.num_free

    def allocate(self, count: int) -> Int32:
        """Take `count` blocks: int32 [count]; if fewer are free, take none and raise `PoolExhausted`."""
        if count > self._num_free:
            raise PoolExhausted
        self._num_free -= count
        blocks = self._stack[self._num_free : self._num_free + count][::-1].copy()
        self._allocated[blocks] = True
        return blocks

    def free(self, blocks: Int32) -> None:
        """Return blocks, int32 [n], to the pool; if one is free or named twice, free none and raise ValueError."""
        if not len(blocks):
            return
        if len(set(blocks.tolist())) != len(blocks) or not self._allocated[blocks].all():
            raise ValueError("double free: a block is free already or named twice")
        self._allocated[blocks] = False
        self._stack[self._num_free : self._num_free + len(blocks)] = blocks[::-1]
        self._num_free += len(blocks)


@dataclass(frozen=True)
class Release:
    """Pages, int32, that a sequence has freed and that are empty for all; seq_index is -1 if it had none."""

    seq_index: int
    host: Int32
    device: Int32
