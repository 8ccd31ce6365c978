"""`CacheOps` by kernels, for CUDA devices.

Nothing waits for the device and no size depends on what is in its memory, so a CUDA graph can hold all of a step.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_triton import paged_attention
from hiscore.decoding.kv_cache.cache import KVCache, StepBatch
from hiscore.decoding.sparse.cache_ops import PageLists
from hiscore.kernels import kv_transfer, page_scores, page_select, slot_mapping
from hiscore.layers import triton_ops

# Bytes that are under way from the host at once: some times what the bus holds. More came in no faster.
UNDER_WAY = 2**18
# Numbers that one program moves at once.
COPIED = 4096
# Pages that a selecting program looks at at once, and its warps; places under LRU, at least so many at once: with
# fewer the compiler runs out of registers.
WALKED, WALKERS = 1024, 8
LEAST_PLACES = 512
# Programs that take a prompt to the host, twice as many numbers at once: they fill the bus. Forwards run beside
# them, and are held up on each multiprocessor that stores to the host.
LEAVING = 3
# Up to so many tokens hold nothing up for long, and leave programs waiting for the memory rather than for the bus.
SHORT = 64


@dataclass(frozen=True)
class KernelChosen:
    """See `Chosen`.

    swaps: int32 [R, H, K, 2], the copied pages (of the host, of the buffer); swap_counts: int32 [R, H], how many.
    """

    pages: Tensor
    lists: PageLists
    mass: Tensor
    swaps: Tensor
    swap_counts: Tensor


class TritonCacheOps:
    """`CacheOps` over a cache on a CUDA device.

    What `shape` calls kv_heads are the cache's heads. max_length: tokens of the longest stream that may be among
    the rows, for which the grids are made. full: rows with `KVCache.full_attention` may be
    among them; lists are then as long as max_length. value_width: numbers of a latent that are its value.
    """

    def __init__(
        self,
        cache: KVCache,
        shape: AttentionShape,
        max_length: int,
        full: bool = False,
        value_width: int | None = None,
    ) -> None:
        sizes = cache.shape
        self._cache, self._shape, self._full = cache, shape, full
        self._value_width = value_width
        self._max_pages = triton.cdiv(max_length, sizes.page)
        self._padded = max(16, triton.next_power_of_2(sizes.width))
        # Triton's default for float32 would be TF32, with 10 bits of mantissa.
        self._precision = "ieee" if cache.buffer.dtype == torch.float32 else "tf32"
        device = cache.buffer.device
        places = [cache.sparse.get(layer, -1 - cache.dense.get(layer, 0)) for layer in range(sizes.layers)]
        self._layer_places = torch.tensor(places, dtype=torch.int32, device=device)
        self._sparse = torch.tensor(list(cache.sparse), dtype=torch.int32, device=device)
        self._dense = torch.tensor(list(cache.dense), dtype=torch.int32, device=device)

    # A step.

    def newest_slots(self, rows: StepBatch) -> tuple[Tensor, Tensor]:
        cache, sizes, count = self._cache, self._cache.shape, len(rows.slots)
        home, buffer = torch.empty_like(rows.slots), torch.empty_like(rows.slots)
        slot_mapping.newest_slots[(triton.cdiv(count, 128),)](
            rows.slots, rows.positions, cache.host_block_table, cache.device_block_table, cache.fully_resident,
            home, buffer, count, sizes.lru_pages, sizes.ring_pages, cache.host_block_table.stride(0),
            PAGE=sizes.page, BLOCK=128,
        )  # fmt: skip
        return home, buffer

    def write_index(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Take new tokens' keys [n, H, D] into the index: `Selector.write`, but for bounds one token of a page."""
        cache = self._cache
        if cache.shape.index == "none":
            return
        index = cache.index_of(layer)
        width = index.shape[-1]
        keys = keys.view(len(keys), -1, width)
        _check_heads(keys)
        if len(keys):
            page_scores.write_index[(len(keys), keys.shape[1])](
                keys, index, host_slots, keys.stride(0),
                KV_HEADS=keys.shape[1], WIDTH=width, PADDED=triton.next_power_of_2(width),
                BOUNDS=cache.shape.index == "bounds", PAGE=cache.shape.page,
            )  # fmt: skip

    def scores(self, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
        """Scores of pages by bounds or keys, float32 [R, heads, pages]; q: rotated queries [R, heads, D]."""
        cache, shape = self._cache, self._shape
        _check_heads(q)
        out = torch.empty((len(q), shape.heads, self._max_pages), dtype=torch.float32, device=q.device)
        block = 64
        page_scores.page_scores[(len(q), shape.kv_heads, triton.cdiv(self._max_pages, block))](
            q, cache.index_of(layer), out, rows.slots, rows.positions, cache.host_block_table,
            shape.scale, q.stride(0), cache.host_block_table.stride(0), self._max_pages,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, WIDTH=q.shape[2], PADDED=self._padded,
            BOUNDS=cache.shape.index == "bounds", PAGE=cache.shape.page,
            M=max(16, triton.next_power_of_2(shape.heads // shape.kv_heads)), N=block,
            PRECISION=self._precision,
        )  # fmt: skip
        return out

    def indexer_scores(self, layer: int, q: Tensor, gates: Tensor, rows: StepBatch) -> Tensor:
        """Scores of tokens by a checkpoint's own indexer, float32 [R, 1, pages].

        q: the indexer's queries [R, heads, D], in the dtype of the index; gates: float32 [R, heads], scaled.
        """
        cache = self._cache
        _check_heads(q)
        heads, width = q.shape[1:]
        out = torch.empty((len(q), 1, self._max_pages), dtype=torch.float32, device=q.device)
        # A product of float32 takes many registers, as the compiler reports.
        block, warps = (16, 8) if q.dtype == torch.float32 else (64, 4)
        page_scores.indexer_scores[(len(q), triton.cdiv(self._max_pages, block))](
            q, gates, cache.index_of(layer), out, rows.slots, rows.positions, cache.host_block_table,
            q.stride(0), gates.stride(0), cache.host_block_table.stride(0), self._max_pages,
            HEADS=heads, WIDTH=width, PADDED=max(16, triton.next_power_of_2(width)),
            M=max(16, triton.next_power_of_2(heads)), N=block, PRECISION=self._precision, num_warps=warps,
        )  # fmt: skip
        return out

    def choose(self, layer: int, scores: Tensor, rows: StepBatch) -> KernelChosen:
        """Choose pages by scores, bring the missing ones to the buffer, and note who was used."""
        cache, sizes, at = self._cache, self._cache.shape, self._cache.sparse[layer]
        own = sizes.index == "dsa"
        heads, count = scores.shape[1], len(scores)
        width = self._max_pages if self._full else min(sizes.top_pages, self._max_pages)

        def empty(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty((count, sizes.heads, *size), dtype=dtype, device=scores.device)

        pages, places, counts = empty(width), empty(width), empty()
        swaps, swap_counts, mass = empty(width, 2), empty(), empty(dtype=torch.float32)
        room = max(self._max_pages, sizes.lru_pages)
        weights = scores if own else empty(self._max_pages, dtype=torch.float32)
        # One sink and the ring, or as the contract says the newest token; an indexer chooses by itself.
        newest_forced = {"bounds": sizes.ring_pages, "keys": 1}.get(sizes.index, 0)
        page_select.select_and_place[(count, sizes.heads)](
            scores, weights, empty(room, dtype=torch.uint32), pages, places, counts, swaps, swap_counts, mass,
            cache.hits, cache.misses, cache.mass, rows.slots, rows.positions,
            cache.host_block_table, cache.device_block_table, cache.fully_resident, cache.full_attention,
            cache.device_page_of[at], cache.host_page_of[at], cache.last_use[at],
            self._shape.soft_cap or 0.0, sizes.top_pages, sizes.lru_pages, sizes.ring_pages, newest_forced, width,
            self._max_pages, cache.host_block_table.stride(0), room,
            HEADS=heads, KV_HEADS=sizes.heads, PADDED_GROUP=triton.next_power_of_2(heads // sizes.heads),
            SINK=not own, SOFTMAX=not own, CAPPED=self._shape.soft_cap is not None, PAGE=sizes.page,
            BLOCK=min(WALKED, triton.next_power_of_2(self._max_pages)),
            LRU_BLOCK=min(WALKED, max(LEAST_PLACES, triton.next_power_of_2(sizes.lru_pages))), num_warps=WALKERS,
        )  # fmt: skip
        self._copy(layer, swaps, swap_counts)
        return KernelChosen(pages, PageLists(places, counts), mass, swaps, swap_counts)

    def _copy(self, layer: int, swaps: Tensor, swap_counts: Tensor) -> None:
        cache, sizes = self._cache, self._cache.shape
        at_once, copiers = self._at_once(COPIED)
        pairs = swap_counts.numel()
        kv_transfer.swap_in[(min(copiers, pairs * swaps.shape[2]),)](
            cache.host_kv[layer], cache.buffer[cache.sparse[layer]], swaps, swap_counts, pairs, swaps.shape[2],
            KV_HEADS=sizes.heads, PARTS=sizes.parts, PAGE=sizes.page, WIDTH=sizes.width, PADDED=self._padded,
            PAGES=at_once, PAIRS=triton.next_power_of_2(pairs),
        )  # fmt: skip

    def everything(self, rows: StepBatch) -> PageLists:
        """Lists of all pages of all rows, for dense layers: once a step."""
        counts = torch.where(rows.valid, rows.positions // self._cache.shape.page + 1, 0)
        return PageLists(self._cache.host_block_table, counts[:, None], by_slot=True)

    def attend(self, layer: int, q: Tensor, lists: PageLists, rows: StepBatch) -> Tensor:
        """softmax(cap(q k^T * scale)) v over listed pages: q [R, heads, D] -> [R, heads, value width].

        A row without pages, and padding, is left as it comes from memory.
        """
        shape, page = self._shape, self._cache.shape.page
        _check_heads(q)
        most = min(lists.pages.shape[-1], self._max_pages) * page
        return paged_attention(
            q, self._cache.tokens(layer), page, lists.pages, lists.counts, rows.slots, rows.positions, most,
            shape.scale, shape.soft_cap, shape.windows[layer], self._value_width, lists.by_slot,
            triton_ops.uses_pdl(len(q)),
        )  # fmt: skip

    # Beside the steps.

    def back_up(self, host_slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy a step's new tokens, all layers, to the host pool: slots int32 [R] by `newest_slots`."""
        cache, sizes = self._cache, self._cache.shape
        if len(host_slots):
            kv_transfer.back_up_rows[(len(host_slots), sizes.layers)](
                cache.buffer, cache.dense_kv, cache.host_kv, self._layer_places, buffer_slots, host_slots,
                cache.buffer.stride(0), cache.dense_kv.stride(0), cache.host_kv.stride(0),
                KV_HEADS=sizes.heads, PARTS=sizes.parts, PAGE=sizes.page, WIDTH=sizes.width, PADDED=self._padded,
                LINES=triton.next_power_of_2(sizes.parts * sizes.heads),
            )  # fmt: skip

    def back_up_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        """From staging [L, slots, C, H, D], at slots int32 [n], to pages of the host int32: see `CacheOps`."""
        self._pages(staging, slots, host_pages, to_host=True)

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        self._pages(staging, slots, host_pages, to_host=False)

    def _pages(self, staging: Tensor, slots: Tensor, host_pages: Tensor, to_host: bool) -> None:
        cache, sizes = self._cache, self._cache.shape
        at_once, copiers = self._at_once(2 * COPIED)
        units = triton.cdiv(len(slots), at_once * sizes.page) * sizes.heads * sizes.layers
        if to_host and len(slots) > SHORT:
            copiers = LEAVING
        kv_transfer.copy_pages[(min(copiers, units),)](
            staging, slots, cache.host_kv, host_pages, len(slots), units,
            staging.stride(0), cache.host_kv.stride(0),
            KV_HEADS=sizes.heads, PARTS=sizes.parts, PAGE=sizes.page, WIDTH=sizes.width, PADDED=self._padded,
            PAGES=at_once, TO_HOST=to_host,
        )  # fmt: skip

    def _at_once(self, numbers: int) -> tuple[int, int]:
        """Pages of so many numbers, one at least; and how many programs then have `UNDER_WAY` bytes under way."""
        sizes, item = self._cache.shape, self._cache.host_kv.element_size()
        lines = sizes.parts * sizes.page
        pages = max(1, triton.next_power_of_2(numbers // (lines * self._padded)))
        return pages, max(1, UNDER_WAY // (pages * lines * sizes.width * item))

    def index_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        """Take a prompt's keys into the index of all sparse layers: `bounds` or `keys`, which are the cache's own.

        host_pages int32, and host_slots int32 [n], say the same: where the prompt stands in pages of the host.
        """
        cache, sizes = self._cache, self._cache.shape
        if sizes.index == "bounds":
            pages = triton.cdiv(len(slots), sizes.page)
            page_scores.bound_pages[(pages, sizes.heads, len(cache.sparse))](
                staging, slots, host_pages, cache.index, self._sparse, len(slots), staging.stride(0),
                cache.index.stride(0), ROW=sizes.parts * sizes.heads * sizes.width,
                KV_HEADS=sizes.heads, WIDTH=sizes.width, PADDED=self._padded, PAGE=sizes.page,
            )  # fmt: skip
        elif sizes.index == "keys":
            self._rows(staging, cache.index, slots, host_slots, self._sparse)

    def seed(self, staging: Tensor, from_slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy tokens from staging into the buffer, all sparse layers: int32 [n] each."""
        self._rows(staging, self._cache.buffer, from_slots, buffer_slots, self._sparse)

    def settle(self, staging: Tensor, from_slots: Tensor, host_slots: Tensor) -> None:
        """Copy tokens from staging home, all dense layers: int32 [n] each."""
        self._rows(staging, self._cache.dense_kv, from_slots, host_slots, self._dense)

    def _rows(
        self, source: Tensor, target: Tensor, from_slots: Tensor, to_slots: Tensor, layers: Tensor
    ) -> None:
        if len(layers) and len(from_slots):
            row = target[0, 0].numel()
            kv_transfer.copy_rows[(len(from_slots), len(layers))](
                source, target, from_slots, to_slots, layers, source.stride(0), target.stride(0),
                FROM_ROW=source[0, 0].numel(), TO_ROW=row, BLOCK=triton.next_power_of_2(row),
            )  # fmt: skip


def _check_heads(x: Tensor) -> None:
    """Kernels step from row to row, but take a row's heads to stand side by side."""
    if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
        raise ValueError(f"heads of a row must be contiguous, but strides are {x.stride()}")
