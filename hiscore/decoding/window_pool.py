"""Blocks of layers that keep a window only, as those of the host pool: free, held, or cached.

Sequences share what they find, since nothing is written to a full block any more. But each needs as many of its
own later on: so a block that is held twice counts as two that are used. Of cached blocks, those that a sequence
left behind are evicted before those with which one ended, or which one found. Bookkeeping only: no tensor, no
device.
"""

from collections import OrderedDict

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.host_pool import HostPool


class WindowPool(HostPool):
    """See `HostPool`.

    Args:
        size: Number of blocks.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._retired: OrderedDict[int, None] = OrderedDict()  # held by nobody, the longest retired first
        self._found = np.zeros(size, np.bool_)
        self._turns = np.zeros(size, np.int64)
        self._shared = 0

    @property
    def num_free(self) -> int:
        return super().num_free + len(self._retired) - self._shared

    @property
    def num_cached(self) -> int:
        return super().num_cached + len(self._retired)

    def is_published(self, block: int) -> bool:
        """Whether a block can be found."""
        return bool(self._is_published[block])

    def hold(self, blocks: Int32) -> None:
        self._shared += int((self._holders[blocks] > 0).sum())
        super().hold(blocks)
        self._found[blocks] = True
        for block in blocks.tolist():
            self._retired.pop(block, None)

    def allocate(self, count: int) -> Int32:
        blocks = super().allocate(count)
        self._found[blocks] = False
        self._turns[blocks] += 1
        return blocks

    def release(self, blocks: Int32) -> Int32:
        shared = int((self._holders[blocks] > 1).sum())
        lost = super().release(blocks)
        self._shared -= shared
        return lost

    def retire(self, block: int) -> int:
        """Take a block from its sequence, which sees it no more: it may be found until its memory is needed.

        Returns:
            What `publish_retired` needs to know of it.
        """
        blocks = np.array([block], np.int32)
        if self._found[block] or not (self._holders[blocks] == 1).all():
            self.release(blocks)
        else:
            self._holders[block] = 0
            self._retired[block] = None
        return int(self._turns[block])

    def publish_retired(self, block_hash: bytes, block: int, turn: int) -> None:
        """Let a retired block be found, unless it was given out again meanwhile."""
        if block in self._retired and self._turns[block] == turn:
            self.publish([block_hash], np.array([block], np.int32))

    def longest_with_window(self, hashes: list[bytes], blocks: int) -> int:
        """How many of these blocks of a sequence, at most, end with so many that can be found, or with all.

        Args:
            hashes: Hashes of the sequence's first blocks.
            blocks: How many make up a window.
        """
        longest = run = 0
        for end, each in enumerate(hashes, start=1):
            run = run + 1 if each in self._published else 0
            if run >= min(end, blocks):
                longest = end
        return longest

    def _evict(self, count: int) -> Int32:
        retired = min(count, len(self._retired))
        blocks = np.array([self._retired.popitem(last=False)[0] for _ in range(retired)], np.int32)
        self._forget(blocks[self._is_published[blocks]])
        return np.concatenate((blocks, super()._evict(count - retired)))
