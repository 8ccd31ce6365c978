"""`CacheOps` in PyTorch, for the CPU: the reference for the kernels."""

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_torch import paged_attention
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.block_tables import slot_mapping, window_slots
from hiscore.decoding.sparse.cache_ops import PageLists, SelectedPages
from hiscore.decoding.sparse.dsa import DsaSelector
from hiscore.decoding.sparse.residency import host_pages_of, resident_pages_of, swap_in, window_pages_of
from hiscore.decoding.sparse.selection import select_all_pages
from hiscore.decoding.sparse.selectors import make_selector

ALL = slice(None)


class TorchCacheOps:
    """`CacheOps` over a cache on the CPU; a latent's `value_dim` leading channels are its value."""

    def __init__(self, cache: KVCache, shape: AttentionShape, value_dim: int | None = None) -> None:
        self._cache, self._shape, self._value_dim = cache, shape, value_dim
        self._selector = make_selector(cache, shape)

    def slot_mapping(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        return slot_mapping(self._cache, batch)

    def window_slots(self, batch: StepBatch) -> Tensor:
        return window_slots(self._cache, batch)

    def write_index(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        if self._selector is not None:
            self._selector.write(layer, keys, host_slots)

    def page_scores(self, layer: int, q: Tensor, batch: StepBatch) -> Tensor:
        if self._selector is None or isinstance(self._selector, DsaSelector):
            raise TypeError(f"index {self._cache.shape.index_kind!r} does not score attention's queries")
        return self._selector.scores(layer, q, batch)

    def indexer_scores(self, layer: int, q: Tensor, gates: Tensor, batch: StepBatch) -> Tensor:
        if not isinstance(self._selector, DsaSelector):
            raise TypeError(f"index {self._cache.shape.index_kind!r} does not score an indexer's queries")
        return self._selector.scores(layer, q, gates, batch)

    def select_pages(self, layer: int, scores: Tensor, batch: StepBatch) -> SelectedPages:
        if self._selector is None:
            raise TypeError("without an index there is nothing to select by")
        selection = self._selector.select(scores, batch)
        device_pages = swap_in(self._cache, layer, selection, batch)
        # NaN scores say nothing about their row, and must not spoil the sum over all rows.
        captured = selection.mass.double().nan_to_num(0.0).sum()
        self._cache.mass += torch.stack((captured, batch.valid.sum() * selection.mass.shape[1]))
        return SelectedPages(selection.pages, PageLists(device_pages, selection.counts), selection.mass)

    def all_pages(self, batch: StepBatch) -> PageLists:
        selection = select_all_pages(batch, self._cache.shape.kv_heads, self._cache.shape.page_size)
        return PageLists(host_pages_of(self._cache, selection, batch), selection.counts)

    def window_pages(self, batch: StepBatch) -> PageLists:
        selection = select_all_pages(batch, self._cache.shape.kv_heads, self._cache.shape.page_size)
        return PageLists(window_pages_of(self._cache, selection, batch), selection.counts)

    def resident_pages(self, batch: StepBatch) -> PageLists:
        selection = select_all_pages(batch, self._cache.shape.kv_heads, self._cache.shape.page_size)
        return PageLists(resident_pages_of(self._cache, selection, batch), selection.counts)

    def attend(self, layer: int, q: Tensor, lists: PageLists, batch: StepBatch) -> Tensor:
        shape = self._shape
        return paged_attention(
            q, self._cache.tokens(layer), self._cache.shape.page_size, lists.pages, lists.counts, batch.positions,
            shape.scale, shape.soft_cap, shape.windows[layer], self._value_dim,
            None if shape.sinks is None else shape.sinks[layer],
        )  # fmt: skip

    def offload_step(self, host_slots: Tensor, buffer_slots: Tensor) -> None:
        cache, page_size = self._cache, self._cache.shape.page_size
        (kept,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        host, buffer = host_slots[kept].long(), buffer_slots[kept].long()
        for layer in cache.on_host:
            tokens = cache.tokens(layer)[host if layer in cache.dense else buffer]
            cache.write_host(layer, tokens.transpose(1, 2), host // page_size, ALL, ALL, host % page_size)

    def offload_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        pages, offsets = self._pages_and_offsets(host_pages, len(slots))
        for layer, at in self._cache.on_host.items():
            tokens = staging[at][slots.long()]
            self._cache.write_host(layer, tokens.transpose(1, 2), pages, ALL, ALL, offsets)

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        pages, offsets = self._pages_and_offsets(host_pages, len(slots))
        for layer, at in self._cache.on_host.items():
            tokens = self._cache.read_host(layer, pages, ALL, ALL, offsets)
            staging[at][slots.long()] = tokens.transpose(1, 2)

    def index_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        if not isinstance(self._selector, DsaSelector):
            for layer in self._cache.sparse:
                self.write_index(layer, staging[self._cache.on_host[layer]][slots.long(), 0], host_slots)

    def fill_buffer(self, staging: Tensor, slots: Tensor, buffer_slots: Tensor) -> None:
        for layer in self._cache.sparse:
            staged = staging[self._cache.on_host[layer]]
            self._cache.tokens(layer)[buffer_slots.long()] = staged[slots.long()]

    def fill_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        for layer in self._cache.dense:
            staged = staging[self._cache.on_host[layer]]
            self._cache.tokens(layer)[host_slots.long()] = staged[slots.long()]

    def restore_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        for layer, at in self._cache.dense.items():
            staging[at][slots.long()] = self._cache.tokens(layer)[host_slots.long()]

    def keep_windows(self, slots: Tensor, window_slots: Tensor) -> None:
        tokens = self._cache.window_kv
        tokens[:, window_slots.long()] = tokens[:, slots.long()]

    def _pages_and_offsets(self, host_pages: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Find a sequence's first tokens on the host: pages and offsets in these, int64 [tokens]."""
        position = torch.arange(tokens)
        page_size = self._cache.shape.page_size
        return host_pages.long()[position // page_size], position % page_size
