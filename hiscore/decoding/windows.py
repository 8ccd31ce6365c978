"""Who holds which blocks of layers that keep a window only, and which of those can be found again.

A sequence's newest blocks have a ring of places. Without a prefix cache a new block takes the memory of the one
that had its place before. With one, that block stays where it is, if it can be found or is of the prompt, and the
new one gets other memory: so a window can be found that a sequence has left behind.
"""

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.worker import NO_PAGES
from hiscore.decoding.sequence import Sequence
from hiscore.decoding.window_pool import WindowPool
from hiscore.decoding.window_ring import SetAside


class Windows:
    """Places of sequences, and the pool of their blocks."""

    def __init__(self, cache_config: CacheConfig) -> None:
        self._config = cache_config
        self._ring = cache_config.window_ring // cache_config.block_pages
        self.pool = WindowPool(cache_config.window_pages // cache_config.block_pages)

    def missing(self, sequence: Sequence, blocks: int) -> int:
        """Places that a sequence of so many blocks lacks."""
        return min(blocks, self._ring) - len(sequence.window.numbers)

    def add(self, sequence: Sequence, count: int, found: Int32 = NO_PAGES, end: int = 0) -> None:
        """Give a sequence places: for new blocks, and for its blocks before the `end`-th that were found."""
        if not self._ring:
            return
        ring = sequence.window
        numbers = np.full(count + len(found), -1, np.int32)
        blocks = np.empty_like(numbers)
        of_found = np.arange(end - len(found), end, dtype=np.int32)
        places = of_found % max(1, self._ring)
        numbers[places], blocks[places] = of_found, found
        blocks[numbers < 0] = self.pool.allocate(count)
        ring.numbers = np.concatenate((ring.numbers, numbers))
        ring.pages = np.concatenate((ring.pages, self._pages_of(blocks)))

    def enter(self, sequence: Sequence, number: int) -> None:
        """Give a block of a sequence its place, before any of it is written; it may have had it before."""
        if not self._ring:
            return
        ring, place = sequence.window, number % self._ring
        before = int(ring.numbers[place])
        ring.numbers[place] = number
        if before < 0 or not self._config.prefix_cache:
            return
        pages = slice(place * self._config.block_pages, (place + 1) * self._config.block_pages)
        block = int(ring.pages[pages.start]) // self._config.block_pages
        in_prompt = (before + 1) * self._config.block_tokens <= len(sequence.call.prompt)
        if self.pool.is_published(block):
            self.pool.retire(block)
        elif in_prompt and not sequence.is_published:
            ring.set_aside.append(SetAside(before, block, self.pool.retire(block)))
        else:
            return
        # At worst the same block: none that a sequence ended with is evicted for this.
        ring.pages[pages] = self._pages_of(self.pool.allocate(1))

    def enter_chunk(self, sequence: Sequence, tokens: int) -> tuple[Int32, Int32]:
        """Give the blocks of a prompt's next tokens their places, one after the other.

        Returns:
            The pages of what is before these tokens, and of themselves from the one that the first is in: int32.
        """
        if not self._ring:
            return NO_PAGES, NO_PAGES
        page, block = self._config.page_size, self._config.block_pages
        start, end = sequence.prefilled, sequence.prefilled + tokens
        before = sequence.window.pages_of(0, -(-start // page))
        into = []
        for number in range(start // self._config.block_tokens, (end - 1) // self._config.block_tokens + 1):
            if number * self._config.block_tokens >= start:
                self.enter(sequence, number)
            into.append(
                sequence.window.pages_of(
                    max(start // page, number * block), min(-(-end // page), (number + 1) * block)
                )
            )
        return before, np.concatenate(into)

    def enter_step(self, sequence: Sequence) -> bool:
        """Give the block that a sequence's next token begins its place; whether pages of it may have changed."""
        number, behind = divmod(sequence.length, self._config.block_tokens)
        if behind or not self._ring:
            return False
        self.enter(sequence, number)
        return self._config.prefix_cache

    def has(self, sequence: Sequence, tokens: int) -> bool:
        """Whether a sequence that goes back to its first tokens still has the window before its next one."""
        if tokens >= sequence.length or not self._ring:
            return True
        size, furthest = self._config.block_tokens, max(sequence.window.furthest, sequence.length)
        # A token takes the place of the one a ring before it; under a prefix cache a block that of a block.
        entered = -(-furthest // size) * size if self._config.prefix_cache else furthest
        return max(0, tokens - self._config.window + 1) >= entered - self._ring * size

    def behind(self, sequence: Sequence, left: int) -> int:
        """How many blocks a sequence does not need if it has only so many of its first ones."""
        return max(0, len(sequence.window.numbers) - left)

    def free(self, sequence: Sequence, left: int) -> None:
        """Free what a sequence does not need with so many of its first blocks."""
        if not self._ring:
            return
        ring, pages = sequence.window, left * self._config.block_pages
        self.pool.release(self._blocks_of(ring.pages[pages:]))
        ring.pages, ring.numbers = ring.pages[:pages], ring.numbers[:left]
        if not left:
            ring.set_aside.clear()

    def find(self, hashes: list[bytes]) -> tuple[int, Int32]:
        """How many of a prompt's first blocks can be used: the window before their end is there; and its blocks.

        Args:
            hashes: Those of the blocks that are on the host.
        """
        if not self._ring:
            return len(hashes), NO_PAGES
        blocks = self._ring - 1
        end = self.pool.longest_with_window(hashes, blocks)
        return end, self.pool.find(hashes[max(0, end - blocks) : end])

    def publish(self, sequence: Sequence, hashes: list[bytes]) -> None:
        """Let others find a sequence's blocks, as far as there are hashes of its first ones."""
        if not self._ring:
            return
        ring = sequence.window
        for number, block in zip(ring.numbers.tolist(), self._blocks_of(ring.pages), strict=True):
            if 0 <= number < len(hashes):
                self.pool.publish([hashes[number]], np.array([block], np.int32))
        for each in ring.set_aside:
            self.pool.publish_retired(hashes[each.number], each.block, each.turn)
        ring.set_aside.clear()

    def _pages_of(self, blocks: Int32) -> Int32:
        pages = self._config.block_pages
        return (blocks[:, None] * pages + np.arange(pages, dtype=np.int32)).ravel().astype(np.int32)

    def _blocks_of(self, pages: Int32) -> Int32:
        return (pages[:: self._config.block_pages] // self._config.block_pages).astype(np.int32)
