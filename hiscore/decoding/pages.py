"""Which pages of a pool are free. Only bookkeeping: no tensor, no device."""

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import PoolExhausted


class PagePool:
    """Pages 0 .. pages - 1; what was given back last is taken first."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self._free = pages
        self._taken = np.zeros(pages, np.bool_)

    @property
    def free(self) -> int:
        return self._free

    @property
    def used(self) -> int:
        return self.pages - self._free

    def take(self, count: int) -> Int32:
        """All of `count` pages, int32 [count], or none.

        Raises:
            PoolExhausted: there are not so many.
        """
        if count > self._free:
            raise PoolExhausted
        self._free -= count
        pages = self._stack[self._free : self._free + count][::-1].copy()
        self._taken[pages] = True
        return pages

    def give_back(self, pages: Int32) -> None:
        """Free pages that were taken before.

        Raises:
            ValueError: one of them is free already, or is named twice. None has been freed then.
        """
        if len(np.unique(pages)) != len(pages) or not self._taken[pages].all():
            raise ValueError("pages are given back that nobody holds")
        self._taken[pages] = False
        self._stack[self._free : self._free + len(pages)] = pages[::-1]
        self._free += len(pages)
