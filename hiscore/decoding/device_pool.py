"""Pages of the device buffers: each is free, held by a sequence, or cached for one to come.

Pages of a sequence that ends stay cached under the blocks of the host that hold the same tokens. They count as
free: the least recently used are evicted as soon as others need them, a sequence's last before its first, and when
their block on the host is evicted. Bookkeeping only: no tensor, no device.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from hiscore.arrays import Int32
from hiscore.decoding.block_pool import BlockPool
from hiscore.errors import PoolExhausted


class DevicePool(BlockPool):
    """See `BlockPool`.

    Args:
        size: Number of pages.
        block_pages: Pages of a block.
    """

    def __init__(self, size: int, block_pages: int) -> None:
        super().__init__(size)
        self._block_pages = block_pages
        self._cached: OrderedDict[int, Int32] = OrderedDict()  # by block, the least recently used first

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
            self._give_up([self._cached.popitem(last=False)[1] for _ in range(evicted)])
        return super().allocate(count)

    def cache(self, blocks: Int32, can_be_found: NDArray[np.bool_], pages: Int32) -> Int32:
        """Let go of pages that hold what blocks of the host do, as far as these can be found.

        Args:
            blocks: int32 [n], in the order of their sequence.
            can_be_found: bool [n].
            pages: int32, those of the blocks; the last block may have fewer than the others.

        Returns:
            Those that are still held: int32.
        """
        held = np.ones(len(pages), bool)
        for number in reversed(np.flatnonzero(can_be_found).tolist()):
            of_block = slice(number * self._block_pages, (number + 1) * self._block_pages)
            if (block := int(blocks[number])) not in self._cached:
                self._cached[block] = pages[of_block]
                held[of_block] = False
        self._allocated[pages[~held]] = False
        left: Int32 = pages[held]
        return left

    def take(self, blocks: Int32) -> Int32:
        """Hold what is cached under blocks of the host.

        Returns:
            int32 [n, pages of a block]: the pages of each block, -1 where nothing is cached.
        """
        pages = np.full((len(blocks), self._block_pages), -1, np.int32)
        for number, block in enumerate(blocks.tolist()):
            pages[number] = self._cached.pop(block, -1)
        self._allocated[pages[pages >= 0]] = True
        return pages

    def evict(self, block: int) -> None:
        """Free what is cached under a block of the host, if anything is."""
        if block in self._cached:
            self._give_up([self._cached.pop(block)])

    def _give_up(self, cached: list[Int32]) -> None:
        pages = np.concatenate(cached)
        self._allocated[pages] = True
        self.free(pages)
