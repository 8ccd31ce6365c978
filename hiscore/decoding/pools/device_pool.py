"""Pages of the device buffers: each is free, held by a sequence, or cached for one to come.

Pages of a sequence that ends stay cached under the blocks of the host that hold the same tokens. They count as
free: the least recently used are evicted as soon as others need them, a sequence's last before its first, and when
their block on the host is evicted. Bookkeeping only: no tensor, no device.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from hiscore.arrays import Int32
from hiscore.decoding.pools.block_pool import BlockPool
from hiscore.errors import PoolExhausted


class DevicePool(BlockPool):
    """A `BlockPool` of pages that can be cached under `blocks` blocks of the host, of `block_pages` pages each."""

    def __init__(self, size: int, block_pages: int, blocks: int) -> None:
        super().__init__(size)
        self._block_pages = block_pages
        self._cached: OrderedDict[int, None] = OrderedDict()  # blocks, the least recently used first
        self._pages = np.full((blocks, block_pages), -1, np.int32)  # what is cached under them; -1: nothing

    @property
    def num_free(self) -> int:
        """Pages that can be allocated: those that nobody holds."""
        return super().num_free + self.num_cached

    @property
    def num_cached(self) -> int:
        """Pages that nobody holds but that can be taken over."""
        return len(self._cached) * self._block_pages

    def allocate(self, count: int) -> Int32:
        if count > self.num_free:
            raise PoolExhausted
        evicted = -(-(count - super().num_free) // self._block_pages)
        if evicted > 0:
            blocks = [self._cached.popitem(last=False)[0] for _ in range(evicted)]
            self._give_up(np.array(blocks, np.int32))
        return super().allocate(count)

    def cache(self, blocks: Int32, can_be_found: NDArray[np.bool_], pages: Int32) -> Int32:
        """Let go of pages that hold what blocks of the host do, if these can be found; return the others, int32.

        Blocks are int32 [n], in the order of their sequence; the last may have fewer pages than the others.
        """
        if not can_be_found.any():
            return pages
        whole = len(pages) // self._block_pages
        can_stay = can_be_found[:whole] & (self._pages[blocks[:whole], 0] < 0)
        numbers = np.flatnonzero(can_stay)[::-1]
        staying = pages[: whole * self._block_pages].reshape(whole, self._block_pages)[numbers]
        self._pages[blocks[numbers]] = staying
        self._cached.update(dict.fromkeys(blocks[numbers].tolist()))
        self._allocated[staying] = False
        left: Int32 = pages[self._allocated[pages]]
        return left

    def take(self, blocks: Int32) -> Int32:
        """Hold what is cached under blocks: int32 [n, pages of a block], -1 where nothing is cached."""
        pages: Int32 = self._pages[blocks]
        self._forget(blocks)
        self._allocated[pages[pages >= 0]] = True
        self._pages[blocks] = -1
        return pages

    def evict(self, blocks: Int32) -> None:
        """Free what is cached under blocks of the host, int32 [n], as far as anything is."""
        self._give_up(self._forget(blocks))

    def _forget(self, blocks: Int32) -> Int32:
        """Return the blocks under which something is cached, and forget that they have it."""
        cached: Int32 = blocks[self._pages[blocks, 0] >= 0]
        for block in cached.tolist():
            del self._cached[block]
        return cached

    def _give_up(self, blocks: Int32) -> None:
        pages = self._pages[blocks].ravel()
        self._pages[blocks] = -1
        self._allocated[pages] = True
        self.free(pages)
