"""Which sequences select, and which attend to everything again, under SELECTOR=auto.

A sequence attends to everything while it is on the device as a whole. When the device's pool is full the longest
is spilled: it is preempted, and goes on from its host pages with a buffer. Each frees the most that way, and
selecting from many pages loses the least. It comes back when nobody waits and there is room for all that it may
still generate, so that it is not soon spilled once more; the shortest first, one at a time.
"""

from collections.abc import Iterable

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.sequence import Sequence

LEAST_LEFT = 64
"""A sequence that generates fewer tokens is not worth the copy of all that it has."""


def to_spill(sequences: Iterable[Sequence], cache_config: CacheConfig) -> Sequence | None:
    """The longest sequence that attends to everything and would hold less if it selected."""
    buffer = cache_config.buffer_pages * cache_config.page_size
    resident = [each for each in sequences if each.resident and _tokens(each) >= buffer]
    return max(resident, key=_tokens, default=None)


def to_recall(running: Iterable[Sequence], free: int, cache_config: CacheConfig) -> Sequence | None:
    """The shortest sequence that was spilled, if so many free device pages have room for all of it."""
    spilled = [each for each in running if each.call.params.sparse and not each.resident]
    spilled = [each for each in spilled if each.tokens_left >= LEAST_LEFT]
    first = min(spilled, key=lambda each: each.length, default=None)
    if first is None:
        return None
    pages = -(-(first.length + first.tokens_left + 1) // cache_config.page_size) + cache_config.block_pages
    return first if min(pages, cache_config.max_pages) - len(first.device_pages) <= free else None


def spilled_order(pages: int, device_pages: Int32, lru_pages: int, ring_pages: int) -> tuple[Int32, int]:
    """Number the device pages of a resident sequence anew, as LRU area and ring, before its next page begins.

    Args:
        pages: Pages that it has, all full; at most as many as a buffer has.
        device_pages: int32 [buffer pages]: the first ones hold these, in order; the others nothing.
        lru_pages: Pages of the LRU area.
        ring_pages: Pages of the ring.

    Returns:
        Its device pages in their new order, int32 [buffer pages], and how many of its first pages are in the LRU
        area, in order.
    """
    # The next page takes its place in the ring.
    in_ring = np.arange(max(0, pages - ring_pages + 1), pages)
    spilled = min(lru_pages, pages - len(in_ring))
    order = np.full(lru_pages + ring_pages, -1, np.int32)
    order[:spilled] = device_pages[:spilled]
    order[lru_pages + in_ring % ring_pages] = device_pages[in_ring]
    order[order < 0] = device_pages[~np.isin(device_pages, order)]
    return order, spilled


def _tokens(sequence: Sequence) -> int:
    """Tokens of a sequence, its prompt at least."""
    return max(sequence.length, len(sequence.call.prompt))
