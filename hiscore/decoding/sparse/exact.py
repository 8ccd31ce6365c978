"""Exact selection: the tokens that attention itself would weigh most. All keys stay on the device."""

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.selection import Selection, rows_to_score, select_by_attention, zero_scores
from hiscore.numerics import widen


class ExactSelector:
    """`Selector` by exact attention logits; a page is a token. The first and the newest are always selected."""

    def __init__(self, cache: KVCache, shape: AttentionShape) -> None:
        self._cache, self._shape = cache, shape

    def write(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        (kept,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        self._cache.index_of(layer)[host_slots[kept].long()] = keys[kept]

    def scores(self, layer: int, q: Tensor, batch: StepBatch) -> Tensor:
        cache, shape = self._cache, self._shape
        q = widen(q).unflatten(1, (shape.kv_heads, -1))
        index = cache.index_of(layer)
        out = zero_scores(cache, batch, shape.heads, q.dtype)
        for row, pages in rows_to_score(cache, batch):
            keys = widen(index[pages]).permute(1, 2, 0)
            out[row, :, : len(pages)] = (q[row] @ keys * shape.scale).flatten(0, 1)
        return out

    def select(self, scores: Tensor, batch: StepBatch) -> Selection:
        return select_by_attention(self._cache, scores, batch, self._shape.soft_cap)
