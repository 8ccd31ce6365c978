"""Values of the SELECTOR setting, with the selectors that implement them. A new selector is added here.

The kernels (`triton_cache_ops`) follow the index kind and need nothing new for a selector that shares one.

Quest scores a page by an upper bound on q.k, from the per-channel minima and maxima of its keys: a query's product
with any key of a page is at most the sum over channels of the larger of its products with the channel's minimum
and maximum. With pages of one token the bound is the product, and the selection that of attention itself.

DeepSeek sparse attention (DSA) selects tokens by the checkpoint's indexer, which has its own keys and queries.

Sources: Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", arXiv:2406.10774;
DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import IndexKind
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.selection import (
    Selection,
    rows_to_score,
    select,
    zero_scores,
)
from hiscore.device.numerics import widen


class QuestSelector:
    """Scores pages by their bounds. The ring's pages are always selected: the newest page's bounds still grow."""

    def __init__(self, cache: KVCache, shape: AttentionShape) -> None:
        self._cache, self._shape = cache, shape

    def write(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Add keys, [n, H, head_dim], to the index, except where a host slot is -1; a page's first starts it."""
        (kept,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        keys, slots = keys[kept], host_slots[kept].long()
        pages, offsets = slots // self._cache.shape.page_size, slots % self._cache.shape.page_size
        bounds = self._cache.index_of(layer)
        least, greatest = bounds[:, :, 0], bounds[:, :, 1]
        least[pages[offsets == 0]] = float("inf")
        greatest[pages[offsets == 0]] = float("-inf")
        page_of_key = pages[:, None, None].expand_as(keys)
        least.scatter_reduce_(0, page_of_key, keys, "amin")
        greatest.scatter_reduce_(0, page_of_key, keys, "amax")

    def scores(self, layer: int, q: Tensor, batch: StepBatch) -> Tensor:
        """Score pages by rotated queries: [R, heads, N], 0 beyond a row's pages and where all are selected."""
        cache, shape = self._cache, self._shape
        q = widen(q).unflatten(1, (shape.kv_heads, -1))
        bounds = cache.index_of(layer)
        out = zero_scores(cache, batch, shape.heads, q.dtype)
        for row, pages in rows_to_score(cache, batch):
            least, greatest = widen(bounds[pages]).permute(2, 1, 3, 0)
            bound = q[row].clamp(min=0) @ greatest + q[row].clamp(max=0) @ least
            out[row, :, : len(pages)] = (bound * shape.scale).flatten(0, 1)
        return out

    def select(self, scores: Tensor, batch: StepBatch) -> Selection:
        return select(self._cache, scores, batch, self._shape.soft_cap)


class DsaSelector:
    """Scores the indexer's queries, else like `QuestSelector`; layers that share an indexer share its scores."""

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
        return select(self._cache, scores, batch, by_scores=True)


@dataclass(frozen=True)
class SelectorKind:
    """Needs of a selector in the cache, and its PyTorch implementation.

    Attributes:
        page_size: Tokens that are selected, moved and evicted together.
        dense_layers: The first layers that attend to everything and stay on the device as a whole.
        make: The PyTorch implementation over a cache; None where every layer is dense.
    """

    index_kind: IndexKind
    page_size: int
    dense_layers: int
    make: Callable[[KVCache, AttentionShape], QuestSelector | DsaSelector] | None


# Larger pages mean a smaller index and longer copies, smaller pages a closer fit to what is looked for.
PAGE_SIZE = 32
QUEST_DENSE_LAYERS = 2
"""The first layers attend widely, and bounds of pages say little about that."""

SELECTORS: dict[str, SelectorKind] = {
    "dense": SelectorKind("none", PAGE_SIZE, 0, None),
    "quest": SelectorKind("bounds", PAGE_SIZE, QUEST_DENSE_LAYERS, QuestSelector),
    "dsa": SelectorKind("dsa", 1, 0, lambda cache, shape: DsaSelector(cache)),
    "auto": SelectorKind("bounds", PAGE_SIZE, QUEST_DENSE_LAYERS, QuestSelector),
}


def make_selector(cache: KVCache, shape: AttentionShape) -> QuestSelector | DsaSelector | None:
    """Make the PyTorch selector for a cache's index; None without an index."""
    kind = next(kind for kind in SELECTORS.values() if kind.index_kind == cache.shape.index_kind)
    return kind.make(cache, shape) if kind.make else None
