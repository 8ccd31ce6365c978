"""The copy of a prefill to layers that keep a window only.

A sequence has a ring of pages in these layers, with as many tokens as a window at least. A token overwrites the
one a ring before it, which no step at its position sees any more. Earlier rows of a prefill still see that one, so
the rows of a prefill wait behind the pages, and are moved when all of them have attended.
"""

import numpy as np
import torch

from hiscore.arrays import divided
from hiscore.decoding.interface.worker import PrefillChunk
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.device.copies import upload


def keep_windows(ops: CacheOps, shape: CacheShape, chunks: list[PrefillChunk], device: torch.device) -> None:
    """Move the rows of a prefill, in the order of its chunks, to their sequences' pages in windowed layers."""
    if not shape.windowed:
        return
    page = shape.page_size
    to_slots = np.concatenate(
        [divided(chunk.into_windows, page)[chunk.start % page :][: len(chunk.tokens)] for chunk in chunks]
    )
    # The last row that has a slot keeps it: rows before it are out of the window, or nobody's any more.
    kept, last = np.unique(to_slots[::-1], return_index=True)
    rows = shape.window_pages * page + len(to_slots) - 1 - last
    ops.keep_windows(upload(rows.astype(np.int32), device), upload(kept.astype(np.int32), device))
