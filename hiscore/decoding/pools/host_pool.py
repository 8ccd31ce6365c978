"""Blocks of the host pool: each is free, held by sequences, or cached for sequences to come.

A full block can be published under the hash of all tokens up to its end; then others with the same tokens hold it
too. Once nobody holds it, it stays cached until its memory is needed: the least recently used block is evicted
first, a sequence's last before its first. Bookkeeping only: no tensor, no device.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hiscore.arrays import Int32
from hiscore.decoding.pools.block_pool import BlockPool
from hiscore.errors import PoolExhausted


class HostPool:
    """Counts the holders of each block; `on_eviction` gets blocks that can be found no more, int32 [n]."""

    def __init__(self, size: int, on_eviction: Callable[[Int32], None] = lambda blocks: None) -> None:
        self.size, self._on_eviction = size, on_eviction
        self._unused = BlockPool(size)
        self._holders = np.zeros(size, np.int32)
        self._published: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}  # the same, by block
        self._is_published = np.zeros(size, np.bool_)  # and which blocks these are
        self._cached: OrderedDict[int, None] = OrderedDict()  # held by nobody, least recently used first

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated: those that nobody holds."""
        return self._unused.num_free + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.size - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but that can be found."""
        return len(self._cached)

    def find(self, hashes: Iterable[bytes]) -> Int32:
        """Find the blocks published under the first of these hashes, up to one unknown: int32. On any thread."""
        found: list[int] = []
        for each in hashes:
            if (block := self._published.get(each)) is None:
                break
            found.append(block)
        return np.array(found, np.int32)

    def held_once(self, blocks: Int32) -> NDArray[np.bool_]:
        """Mark the blocks that could be allocated once one of their holders let go of them: bool [n]."""
        return np.asarray(self._holders[blocks] == 1)

    def is_held(self, blocks: Int32) -> NDArray[np.bool_]:
        """Mark the blocks that sequences hold: bool [n]."""
        return self._holders[blocks] > 0

    def can_be_found(self, blocks: Int32) -> NDArray[np.bool_]:
        """Mark the blocks that are published: bool [n]."""
        return self._is_published[blocks]

    def hold(self, blocks: Int32) -> None:
        if not len(blocks):
            return
        self._holders[blocks] += 1
        for block in blocks.tolist():
            self._cached.pop(block, None)

    def allocate(self, count: int) -> Int32:
        """Take blocks that nobody holds, int32 [count], evicting cached ones; if too few raise `PoolExhausted`."""
        if count > self.num_free:
            raise PoolExhausted
        if (lacking := count - self._unused.num_free) > 0:
            self._unused.free(self._evict(lacking))
        blocks = self._unused.allocate(count)
        self._holders[blocks] = 1
        return blocks

    def publish(self, hashes: Sequence[bytes], blocks: Int32) -> None:
        """Let held blocks be found; what is published already under a hash stays so."""
        for number in np.flatnonzero(~self._is_published[blocks]).tolist():
            if (each := hashes[number]) not in self._published:
                self._published[each] = block = int(blocks[number])
                self._hashes[block] = each
                self._is_published[block] = True

    def release(self, blocks: Int32) -> Int32:
        """Let go of blocks, in the order of their sequence; return those, int32, now free that cannot be found.

        Raises:
            ValueError: One of them is held by nobody, or named twice; none is released.
        """
        if not len(blocks):
            return blocks
        if len(set(blocks.tolist())) != len(blocks) or not (self._holders[blocks] > 0).all():
            raise ValueError("double free: a block is held by nobody or named twice")
        self._holders[blocks] -= 1
        left = blocks[self._holders[blocks] == 0]
        is_published = self._is_published[left]
        self._cached.update(dict.fromkeys(left[is_published][::-1].tolist()))
        lost: Int32 = left[~is_published]
        self._unused.free(lost)
        return lost

    def _evict(self, count: int) -> Int32:
        blocks = np.array([self._cached.popitem(last=False)[0] for _ in range(count)], np.int32)
        self._forget(blocks)
        return blocks

    def _forget(self, blocks: Int32) -> None:
        for each in map(self._hashes.pop, blocks.tolist()):
            del self._published[each]
        self._is_published[blocks] = False
        self._on_eviction(blocks)
