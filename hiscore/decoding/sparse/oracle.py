"""The oracle: every key stays on the device, and the tokens with the most attention are chosen."""

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache, StepBatch
from hiscore.decoding.sparse.selection import Selection, no_scores, scored_rows, select_by_attention
from hiscore.numerics import widen


class ExactSelector:
    """`Selector` by attention itself; pages are single tokens. The first and the newest are always chosen."""

    def __init__(self, cache: KVCache, shape: AttentionShape) -> None:
        self._cache, self._shape = cache, shape

    def write(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        (new,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        self._cache.index_of(layer)[host_slots[new].long()] = keys[new]

    def scores(self, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
        cache, shape = self._cache, self._shape
        q = widen(q).unflatten(1, (shape.kv_heads, -1))
        index = cache.index_of(layer)
        out = no_scores(cache, rows, shape.heads, q.dtype)
        for row, pages in scored_rows(cache, rows):
            keys = widen(index[pages]).permute(1, 2, 0)
            out[row, :, : len(pages)] = (q[row] @ keys * shape.scale).flatten(0, 1)
        return out

    def select(self, scores: Tensor, rows: StepBatch) -> Selection:
        return select_by_attention(self._cache, scores, rows, 1, self._shape.soft_cap)
