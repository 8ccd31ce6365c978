"""DeepSeek sparse attention (DSA): select tokens by the checkpoint's indexer, which has its own keys and queries.

Source: DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025.
"""

import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.selection import (
    Selection,
    attention_shares,
    page_budgets,
    rows_to_score,
    select_top_pages,
    zero_scores,
)


class DsaSelector:
    """Scores the indexer's queries, else like a `Selector`; layers that share an indexer share its scores."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def write(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Add keys, [n, index_dim] or [n, 1, index_dim], to the index, except where a host slot is -1."""
        (kept,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        self._cache.index_of(layer)[host_slots[kept].long()] = keys[kept].flatten(1)

    def scores(self, layer: int, q: Tensor, gates: Tensor, batch: StepBatch) -> Tensor:
        """Sum gate * relu(q . key) over the heads of q, [R, index heads, index_dim]: float32 [R, 1, N]."""
        cache = self._cache
        index = cache.index_of(layer)
        out = zero_scores(cache, batch, 1, torch.float32)
        for row, pages in rows_to_score(cache, batch):
            out[row, 0, : len(pages)] = gates[row] @ torch.relu(q[row].float() @ index[pages].float().T)
        return out

    def select(self, scores: Tensor, batch: StepBatch) -> Selection:
        """Select the tokens of the highest scores. Their softmax, trained to follow attention, is the mass."""
        lengths, budgets = page_budgets(self._cache, batch)
        forced = torch.zeros(len(lengths), scores.shape[2], dtype=torch.bool)
        width = max([self._cache.shape.top_pages, *budgets.tolist()])
        shares = attention_shares(self._cache, scores, batch)
        return select_top_pages(scores, lengths, forced, budgets, width, shares)
