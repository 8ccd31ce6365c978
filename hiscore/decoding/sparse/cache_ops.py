"""Operations of a decode step on the KV cache: in PyTorch, for the CPU and for tests of the kernels.

`triton_cache_ops` has the same for CUDA devices.

In each layer the new tokens' keys and values are written to the slots of `slot_mapping` and, in a sparse layer,
the keys to the index; pages are scored, selected and swapped in; the rows attend to them. The other operations
move whole prompts and finished steps between staging, device and host.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_torch import paged_attention
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.block_tables import slot_mapping
from hiscore.decoding.sparse.residency import swap_in
from hiscore.decoding.sparse.selection import page_budgets
from hiscore.decoding.sparse.selectors import DsaSelector, make_selector

ALL = slice(None)


@dataclass(frozen=True)
class PageLists:
    """Pages in `KVCache.tokens` that rows attend to; a list ends with the page of the row's position.

    Attributes:
        pages: int32 [R, H, K]; by_sequence: a block table [max_sequences, K].
        counts: int32 [R, H]; [R, 1] where all heads have the same.
        by_sequence: `pages` is indexed by sequence, not by row and head.
        wait: To be called before what reads pages listed as ~page is launched: they are still being swapped in.
            None: no page is. `attend` calls it.
    """

    pages: Tensor
    counts: Tensor
    by_sequence: bool = False
    wait: Callable[[], None] | None = None


@dataclass(frozen=True)
class SelectedPages:
    """Pages that a step selects in a sparse layer: in each sequence, as in `Selection`, and on the device."""

    pages: Tensor
    lists: PageLists
    mass: Tensor


class CacheOps:
    """Operations on a cache on the CPU, in the order of a step; then those on prompts.

    Throughout, `layer` is an index among all layers and q is [R, heads, head_dim]. Staging is [Lh, slots, C, H,
    head_dim], the host's layers, with slots in the order of positions. Slots are int32 [n], those of a step from
    `slot_mapping`. A latent's `value_dim` leading channels are its value.
    """

    def __init__(self, cache: KVCache, shape: AttentionShape, value_dim: int | None = None) -> None:
        self._cache, self._shape, self._value_dim = cache, shape, value_dim
        self._selector = make_selector(cache, shape)

    def slot_mapping(self, batch: StepBatch, table: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return new tokens' slots in a table's pages and in the buffer: int32 [R], -1 for padding.

        None is for host pages (dense layers, index), `window_block_table` for windowed layers.
        """
        return slot_mapping(self._cache, batch, table)

    def write_index(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Add a step's keys, [R, H, head_dim] or an indexer's [R, index_dim], to the index."""
        if self._selector is not None:
            self._selector.write(layer, keys, host_slots)

    def page_scores(self, layer: int, q: Tensor, batch: StepBatch) -> Tensor:
        """Score pages by their bounds or keys: rotated queries, [R, heads, head_dim], to [R, heads, pages]."""
        if self._selector is None or isinstance(self._selector, DsaSelector):
            raise TypeError(f"index {self._cache.shape.index_kind!r} does not score attention's queries")
        return self._selector.scores(layer, q, batch)

    def indexer_scores(self, layer: int, q: Tensor, gates: Tensor, batch: StepBatch) -> Tensor:
        """Score tokens by a checkpoint's own indexer: float32 [R, 1, pages].

        Args:
            q: The indexer's queries [R, index heads, index_dim], in the dtype of the index.
            gates: float32 [R, index heads], all scales included.
        """
        if not isinstance(self._selector, DsaSelector):
            raise TypeError(f"index {self._cache.shape.index_kind!r} does not score an indexer's queries")
        return self._selector.scores(layer, q, gates, batch)

    def select_pages(self, layer: int, scores: Tensor, batch: StepBatch) -> SelectedPages:
        """Select pages by their scores, [R, heads, pages], and begin to swap the missing ones into the buffer.

        They are there after `PageLists.wait`, or once all that was launched has run.
        """
        if self._selector is None:
            raise TypeError("without an index there is nothing to select by")
        selection = self._selector.select(scores, batch)
        device_pages = swap_in(self._cache, layer, selection, batch)
        # NaN scores say nothing about their row, and must not spoil the sum over all rows.
        captured = selection.mass.double().nan_to_num(0.0).sum()
        self._cache.mass += torch.stack((captured, batch.valid.sum() * selection.mass.shape[1]))
        return SelectedPages(selection.pages, PageLists(device_pages, selection.counts), selection.mass)

    def all_pages(self, batch: StepBatch, table: Tensor | None = None) -> PageLists:
        """Lists of every page of every row by a table, once per step; by None those of host pages.

        By `device_block_table` all rows must be resident. By `window_block_table` pages before a row's window hold
        other tokens by now.
        """
        table = self._cache.host_block_table if table is None else table
        lengths, _ = page_budgets(self._cache, batch)
        page = torch.arange(int(lengths.max()) if len(lengths) else 0)
        pages = table[batch.table_rows, : len(page)].masked_fill(page >= lengths[:, None], 0)
        rows_and_heads = len(lengths), self._cache.shape.kv_heads
        return PageLists(
            pages[:, None].expand(*rows_and_heads, -1), lengths.int()[:, None].expand(rows_and_heads)
        )

    def attend(self, layer: int, q: Tensor, lists: PageLists, batch: StepBatch) -> Tensor:
        """Compute softmax(cap(q k^T * scale)) v over listed pages: [R, heads, value_dim]."""
        shape = self._shape
        return paged_attention(
            q, self._cache.tokens(layer), self._cache.shape.page_size, lists.pages, lists.counts, batch.positions,
            shape.scale, shape.soft_cap, shape.windows[layer], self._value_dim,
            None if shape.sinks is None else shape.sinks[layer],
        )  # fmt: skip

    def offload_step(self, host_slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy a step's new tokens, the host's layers, to the host pool."""
        cache, page_size = self._cache, self._cache.shape.page_size
        (kept,) = torch.nonzero(host_slots >= 0, as_tuple=True)
        host, buffer = host_slots[kept].long(), buffer_slots[kept].long()
        for layer in cache.on_host:
            tokens = cache.tokens(layer)[host if layer in cache.dense else buffer]
            cache.write_host(layer, tokens.transpose(1, 2), host // page_size, ALL, ALL, host % page_size)

    def offload_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        """Copy a prompt, or a part that starts at a page, from staging to its host pages, the host's layers."""
        pages, offsets = self._pages_and_offsets(host_pages, len(slots))
        for layer, at in self._cache.on_host.items():
            tokens = staging[at][slots.long()]
            self._cache.write_host(layer, tokens.transpose(1, 2), pages, ALL, ALL, offsets)

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        """Copy a sequence from its host pages, int32, back to staging, the host's layers."""
        pages, offsets = self._pages_and_offsets(host_pages, len(slots))
        for layer, at in self._cache.on_host.items():
            tokens = self._cache.read_host(layer, pages, ALL, ALL, offsets)
            staging[at][slots.long()] = tokens.transpose(1, 2)

    def index_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        """Add a prompt's keys to the index of all sparse layers; do nothing for an indexer, which has its own."""
        if not isinstance(self._selector, DsaSelector):
            for layer in self._cache.sparse:
                self.write_index(layer, staging[self._cache.on_host[layer]][slots.long(), 0], host_slots)

    def fill_buffer(self, staging: Tensor, slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy tokens from staging to the buffer, all sparse layers."""
        for layer in self._cache.sparse:
            staged = staging[self._cache.on_host[layer]]
            self._cache.tokens(layer)[buffer_slots.long()] = staged[slots.long()]

    def fill_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        """Copy tokens from staging to `dense_kv`, all dense layers."""
        for layer in self._cache.dense:
            staged = staging[self._cache.on_host[layer]]
            self._cache.tokens(layer)[host_slots.long()] = staged[slots.long()]

    def restore_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        """Copy tokens from `dense_kv` to staging, all dense layers: the first ones."""
        for layer, at in self._cache.dense.items():
            staging[at][slots.long()] = self._cache.tokens(layer)[host_slots.long()]

    def keep_windows(self, slots: Tensor, window_slots: Tensor) -> None:
        """Move tokens in `window_kv`, all windowed layers, from a prefill's rows to other slots, none twice."""
        tokens = self._cache.window_kv
        tokens[:, window_slots.long()] = tokens[:, slots.long()]

    def _pages_and_offsets(self, host_pages: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Find a sequence's first tokens on the host: pages and offsets in these, int64 [tokens]."""
        position = torch.arange(tokens)
        page_size = self._cache.shape.page_size
        return host_pages.long()[position // page_size], position % page_size
