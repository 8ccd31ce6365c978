"""Where prompts are in layers that keep a window only, and how a prefill gets there.

A sequence has a ring of pages in these layers, with as many tokens as a window at least. A token overwrites the
one a ring before it, which a step at its position does not see any more. But earlier rows of a prefill do: so what
it computes waits behind the pages, and is moved when all of its rows have attended.
"""

import numpy as np
import torch

from hiscore.arrays import Int64
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.interface import PrefillChunk
from hiscore.device import upload


def window_slots_of(chunk: PrefillChunk, start: int, end: int, page_size: int, ring: int) -> Int64:
    """Slots of a prompt's tokens [start, end) in windowed layers: two tokens a ring apart have the same.

    Args:
        chunk: Any part of the prompt.
        start: First position.
        end: The position after the last one.
        page_size: Tokens per page.
        ring: Pages of a sequence at most; 0: there are no such layers.

    Returns:
        int64 [n]; empty without such layers.
    """
    positions = np.arange(start, end if ring else start)
    pages = chunk.window_pages[positions // page_size % ring] if ring else positions
    return pages.astype(np.int64) * page_size + positions % page_size


def keep_windows(ops: CacheOps, shape: CacheShape, chunks: list[PrefillChunk], device: torch.device) -> None:
    """Move what a prefill has computed to its sequences' pages in windowed layers, as much as these hold.

    Args:
        ops: Launches the copy.
        shape: Of the cache.
        chunks: All parts of the prefill, in the order of its rows.
        device: Of the cache.
    """
    if not shape.windowed:
        return
    held, first_row = shape.window_ring * shape.page_size, shape.window_pages * shape.page_size
    ends = first_row + np.cumsum([len(chunk.tokens) for chunk in chunks])
    kept = [min(len(chunk.tokens), held) for chunk in chunks]
    rows = [np.arange(end - count, end) for end, count in zip(ends.tolist(), kept, strict=True)]
    slots = [
        window_slots_of(chunk, chunk.end - count, chunk.end, shape.page_size, shape.window_ring)
        for chunk, count in zip(chunks, kept, strict=True)
    ]
    from_slots, to_slots = (np.concatenate(each).astype(np.int32) for each in (rows, slots))
    ops.keep_windows(upload(from_slots, device), upload(to_slots, device))
