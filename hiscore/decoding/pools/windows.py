"""Pages of sequences in layers that keep a window only: a ring of pages for each sequence, out of one pool.

Page p of a sequence has the (p % ring)-th of its places: a new page takes the memory of the one a ring before it.
"""

import numpy as np

from hiscore.arrays import Int32, divided
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.pools.block_pool import BlockPool
from hiscore.decoding.sequence import Sequence


class Windows:
    def __init__(self, cache_config: CacheConfig) -> None:
        self._config = cache_config
        self._ring = cache_config.window_ring // cache_config.block_pages
        self.pool = BlockPool(cache_config.window_pages // cache_config.block_pages)

    def missing(self, sequence: Sequence, blocks: int) -> int:
        """Count the places that a sequence of so many blocks lacks."""
        return min(blocks, self._ring) - self._count(sequence)

    def add(self, sequence: Sequence, count: int) -> None:
        new = divided(self.pool.allocate(count), self._config.block_pages)
        sequence.held.window_pages = np.concatenate((sequence.held.window_pages, new))

    def of_chunk(self, sequence: Sequence, tokens: int) -> tuple[Int32, Int32]:
        """Return window pages, int32, of the context of a prompt's next tokens, and of the tokens themselves."""
        page = self._config.page_size
        start, end = sequence.prefilled, -(-(sequence.prefilled + tokens) // page)
        return (
            sequence.held.window_pages_of(0, -(-start // page)),
            sequence.held.window_pages_of(start // page, end),
        )

    def has(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether a sequence that goes back to its first tokens still has the window before the next."""
        if tokens >= sequence.length or not self._ring:
            return True
        furthest = max(sequence.furthest, sequence.length)
        # A token takes the place of the one a ring before it.
        return max(0, tokens - self._config.window + 1) >= furthest - self._ring * self._config.block_tokens

    def behind(self, sequence: Sequence, left: int) -> int:
        """Count the places that a sequence does not need if it has only so many of its first blocks."""
        return max(0, self._count(sequence) - left)

    def free(self, sequence: Sequence, left: int) -> None:
        """Free the places that a sequence does not need with so many of its first blocks."""
        pages = left * self._config.block_pages
        freed = sequence.held.window_pages[pages :: self._config.block_pages] // self._config.block_pages
        self.pool.free(freed.astype(np.int32))
        sequence.held.window_pages = sequence.held.window_pages[:pages]

    def _count(self, sequence: Sequence) -> int:
        return len(sequence.held.window_pages) // self._config.block_pages
