"""`CacheOps` in plain torch, for the CPU: the reference that kernels must match."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_torch import paged_attention
from hiscore.decoding.kv_cache.cache import KVCache, StepBatch
from hiscore.decoding.sparse.cache_ops import PageLists
from hiscore.decoding.sparse.dsa import DsaSelector
from hiscore.decoding.sparse.oracle import ExactSelector
from hiscore.decoding.sparse.quest import QuestSelector
from hiscore.decoding.sparse.residency import home_pages, newest_slots, swap_in
from hiscore.decoding.sparse.selection import Selector, everything


@dataclass(frozen=True)
class TorchChosen:
    """See `Chosen`."""

    pages: Tensor
    lists: PageLists
    mass: Tensor


class TorchCacheOps:
    """`CacheOps` over a cache on the CPU.

    What `shape` calls kv_heads are the cache's heads. value_width: numbers of a latent that are its value.
    """

    def __init__(self, cache: KVCache, shape: AttentionShape, value_width: int | None = None) -> None:
        self._cache, self._shape, self._value_width = cache, shape, value_width
        self._selector: Selector | DsaSelector | None = None
        if cache.shape.index == "bounds":
            self._selector = QuestSelector(cache, shape)
        elif cache.shape.index == "keys":
            self._selector = ExactSelector(cache, shape)
        elif cache.shape.index == "dsa":
            self._selector = DsaSelector(cache)

    def newest_slots(self, rows: StepBatch) -> tuple[Tensor, Tensor]:
        return newest_slots(self._cache, rows)

    def write_index(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        if self._selector is not None:
            self._selector.write(layer, keys, host_slots)

    def scores(self, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
        if self._selector is None or isinstance(self._selector, DsaSelector):
            raise TypeError(f"index {self._cache.shape.index!r} has no scores for attention's queries")
        return self._selector.scores(layer, q, rows)

    def indexer_scores(self, layer: int, q: Tensor, gates: Tensor, rows: StepBatch) -> Tensor:
        if not isinstance(self._selector, DsaSelector):
            raise TypeError(f"index {self._cache.shape.index!r} has no scores for an indexer's queries")
        return self._selector.scores(layer, q, gates, rows)

    def choose(self, layer: int, scores: Tensor, rows: StepBatch) -> TorchChosen:
        if self._selector is None:
            raise TypeError("index 'none' chooses nothing")
        selection = self._selector.select(scores, rows)
        places = swap_in(self._cache, layer, selection, rows)
        # Of a row whose scores are no numbers nothing is known, and sums go on without it.
        captured = selection.mass.double().nan_to_num(0.0).sum()
        self._cache.mass += torch.stack((captured, rows.valid.sum() * selection.mass.shape[1]))
        return TorchChosen(selection.pages, PageLists(places, selection.counts), selection.mass)

    def everything(self, rows: StepBatch) -> PageLists:
        selection = everything(rows, self._cache.shape.heads, self._cache.shape.page)
        return PageLists(home_pages(self._cache, selection, rows), selection.counts)

    def attend(self, layer: int, q: Tensor, lists: PageLists, rows: StepBatch) -> Tensor:
        shape = self._shape
        return paged_attention(
            q, self._cache.tokens(layer), self._cache.shape.page, lists.pages, lists.counts, rows.positions,
            shape.scale, shape.soft_cap, shape.windows[layer], self._value_width,
        )  # fmt: skip

    def back_up(self, host_slots: Tensor, buffer_slots: Tensor) -> None:
        cache, page = self._cache, self._cache.shape.page
        (new,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        home, buffer = host_slots[new].long(), buffer_slots[new].long()
        for layer in range(cache.shape.layers):
            rows = cache.tokens(layer)[home if layer in cache.dense else buffer]
            cache.host_kv[layer][home // page, :, :, home % page] = rows.transpose(1, 2)

    def back_up_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        pages, offsets = self._standing(host_pages, len(slots))
        for layer in range(self._cache.shape.layers):
            self._cache.host_kv[layer][pages, :, :, offsets] = staging[layer][slots.long()].transpose(1, 2)

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        pages, offsets = self._standing(host_pages, len(slots))
        for layer in range(self._cache.shape.layers):
            staging[layer][slots.long()] = self._cache.host_kv[layer][pages, :, :, offsets].transpose(1, 2)

    def index_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        if not isinstance(self._selector, DsaSelector):
            for layer in self._cache.sparse:
                self.write_index(layer, staging[layer][slots.long(), 0], host_slots)

    def seed(self, staging: Tensor, from_slots: Tensor, buffer_slots: Tensor) -> None:
        for layer in self._cache.sparse:
            self._cache.tokens(layer)[buffer_slots.long()] = staging[layer][from_slots.long()]

    def settle(self, staging: Tensor, from_slots: Tensor, host_slots: Tensor) -> None:
        for layer in self._cache.dense:
            self._cache.tokens(layer)[host_slots.long()] = staging[layer][from_slots.long()]

    def _standing(self, host_pages: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Where tokens stand on the host: pages and places in them, int64 [tokens]."""
        at = torch.arange(tokens)
        return host_pages.long()[at // self._cache.shape.page], at % self._cache.shape.page
