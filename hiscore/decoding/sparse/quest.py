"""Quest: a page counts as much as the best key that its bounds allow.

For each channel the index keeps the least and the greatest value of a page's keys. A query's product with any key
of the page is at most the sum over channels of the larger of its products with the two.
"""

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache, StepBatch
from hiscore.decoding.sparse.selection import Selection, no_scores, scored_rows, select_by_attention
from hiscore.numerics import widen


class QuestSelector:
    """`Selector` by the bounds of pages.

    The first page and the ring's are always chosen: the newest one's bounds are never those of a full page.
    """

    def __init__(self, cache: KVCache, shape: AttentionShape) -> None:
        self._cache, self._shape = cache, shape

    def write(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        (new,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        keys, slots = keys[new], host_slots[new].long()
        pages, offsets = slots // self._cache.shape.page, slots % self._cache.shape.page
        bounds = self._cache.index_of(layer)
        least, greatest = bounds[:, :, 0], bounds[:, :, 1]
        least[pages[offsets == 0]] = float("inf")
        greatest[pages[offsets == 0]] = float("-inf")
        of_keys = pages[:, None, None].expand_as(keys)
        least.scatter_reduce_(0, of_keys, keys, "amin")
        greatest.scatter_reduce_(0, of_keys, keys, "amax")

    def scores(self, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
        cache, shape = self._cache, self._shape
        q = widen(q).unflatten(1, (shape.kv_heads, -1))
        bounds = cache.index_of(layer)
        out = no_scores(cache, rows, shape.heads, q.dtype)
        for row, pages in scored_rows(cache, rows):
            least, greatest = widen(bounds[pages]).permute(2, 1, 3, 0)
            best = q[row].clamp(min=0) @ greatest + q[row].clamp(max=0) @ least
            out[row, :, : len(pages)] = (best * shape.scale).flatten(0, 1)
        return out

    def select(self, scores: Tensor, rows: StepBatch) -> Selection:
        return select_by_attention(
            self._cache, scores, rows, self._cache.shape.ring_pages, self._shape.soft_cap
        )
