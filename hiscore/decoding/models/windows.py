"""Places of prompts in layers that keep a window only, and the copy of a prefill to them.

A sequence has a ring of pages in these layers, with as many tokens as a window at least. A token overwrites the
one a ring before it, which no step at its position sees any more. Earlier rows of a prefill still see that one, so
the rows of a prefill wait behind the pages, and are moved when all of them have attended.
"""

import numpy as np
import torch

from hiscore.arrays import Int64
from hiscore.decoding.interface.worker import PrefillChunk
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.device.copies import upload


def context_slots(chunk: PrefillChunk, page_size: int) -> Int64:
    """Slots of what is before a part of a prompt in windowed layers: int64 [start], or [0] without such layers."""
    positions = np.arange(chunk.start if len(chunk.window_pages) else 0)
    slots: Int64 = chunk.window_pages[positions // page_size].astype(np.int64) * page_size
    return slots + positions % page_size


def keep_windows(ops: CacheOps, shape: CacheShape, chunks: list[PrefillChunk], device: torch.device) -> None:
    """Move the rows of a prefill, in the order of its chunks, to their sequences' pages in windowed layers."""
    if not shape.windowed:
        return
    to_slots = np.concatenate([_slots_of(chunk, shape.page_size) for chunk in chunks])
    # The last row that has a slot keeps it: rows before it are out of the window, or nobody's any more.
    kept, last = np.unique(to_slots[::-1], return_index=True)
    rows = shape.window_pages * shape.page_size + len(to_slots) - 1 - last
    ops.keep_windows(upload(rows.astype(np.int32), device), upload(kept.astype(np.int32), device))


def _slots_of(chunk: PrefillChunk, page_size: int) -> Int64:
    """Slots of the tokens of a part of a prompt in windowed layers: int64 [n]."""
    positions = np.arange(chunk.start, chunk.end)
    pages = chunk.into_windows[positions // page_size - chunk.start // page_size]
    slots: Int64 = pages.astype(np.int64) * page_size
    return slots + positions % page_size
