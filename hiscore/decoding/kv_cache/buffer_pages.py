"""The device buffer of a sequence that selects: how large its ring is, and which pages it starts with."""

import numpy as np

from hiscore.arrays import Int64


def ring_pages(width: int, page_size: int) -> int:
    """Pages that the newest `width` tokens of a sequence can touch, whatever its position."""
    return -(-(width - 1) // page_size) + 1


def initial_pages(length: int, page_size: int, lru_pages: int, ring_pages: int) -> tuple[Int64, Int64]:
    """Choose the pages that LRU area and ring of a long sequence start with, and their places: int64 [n] each."""
    # The next token may start a page, which then replaces the ring's oldest.
    ring_start = max(0, length // page_size - ring_pages + 1)
    ring = np.arange(ring_start, -(-length // page_size))
    sink = min(1, ring_start)
    before_ring = np.arange(max(sink, ring_start - lru_pages + 1), ring_start)
    lru = np.concatenate((np.arange(sink), before_ring))
    places = np.concatenate((np.arange(len(lru)), lru_pages + ring % ring_pages))
    return np.concatenate((lru, ring)).astype(np.int64), places.astype(np.int64)
