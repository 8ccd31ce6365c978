"""A checkpoint's own indexer: it has keys of its own, one for each token, and chooses tokens by them alone."""

import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache, StepBatch
from hiscore.decoding.sparse.selection import (
    Selection,
    attention_shares,
    budgets,
    no_scores,
    scored_rows,
    top_pages,
)


class DsaSelector:
    """Like a `Selector`, but its queries are the indexer's; layers that share an indexer share its scores."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def write(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Take index keys, [n, D] or [n, 1, D], into the index."""
        (new,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        self._cache.index_of(layer)[host_slots[new].long()] = keys[new].flatten(1)

    def scores(self, layer: int, q: Tensor, gates: Tensor, rows: StepBatch) -> Tensor:
        """Sum over index heads of gate * relu(q . key), float32 [R, 1, N].

        q: [R, heads, D]; gates: float32 [R, heads], with all scales.
        """
        cache = self._cache
        index = cache.index_of(layer)
        out = no_scores(cache, rows, 1, torch.float32)
        for row, pages in scored_rows(cache, rows):
            products = torch.relu(q[row].float() @ index[pages].float().T)
            out[row, 0, : len(pages)] = gates[row] @ products
        return out

    def select(self, scores: Tensor, rows: StepBatch) -> Selection:
        """The tokens with the largest scores.

        Their mass is what the indexer thinks: it is trained so that the softmax of its scores follows attention.
        """
        lengths, top = budgets(self._cache, rows)
        none = torch.zeros(len(lengths), scores.shape[2], dtype=torch.bool)
        width = max([self._cache.shape.top_pages, *top.tolist()])
        return top_pages(scores, lengths, none, top, width, attention_shares(self._cache, scores, rows))
