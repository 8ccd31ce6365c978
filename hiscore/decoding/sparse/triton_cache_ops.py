"""`CacheOps` in Triton, for CUDA devices.

Nothing waits for the device, and no size depends on what is in its memory: a CUDA graph can capture a whole step.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
from torch import Tensor

from hiscore.attention import paged_triton
from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_triton import paged_attention
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.cache_ops import PageLists, SelectedPages
from hiscore.decoding.sparse.triton_transfers import TritonTransfers
from hiscore.kernels import page_scores, page_select, slot_mapping
from hiscore.kernels.dot_size import dot_size
from hiscore.kernels.gemv import GEMV_MAX_ROWS
from hiscore.layers import triton_ops

# Pages that a selecting program reads at once, how many scores of a group of heads they may have, and its warps.
SELECT_BLOCK, SELECT_SCORES, SELECT_WARPS = 2048, 16384, 8
# Programs of attention to pending splits, most of which end at once. More, as of many rows of which one attends
# to 128k tokens, would take longer than the copies that they wait for (by arithmetic, not measured).
MOST_PENDING_PROGRAMS = 2**15
# Least block over the LRU pages: the compiler spills registers with smaller ones.
MIN_LRU_BLOCK = 512
# Above that of steps: few programs, which must not queue behind the many that they run beside.
SIDE_PRIORITY = -2


class SideStream:
    """A stream beside the current one, for work that some of what follows need not wait for.

    In a graph's capture it is a branch; without a CUDA device work runs in order.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=SIDE_PRIORITY) if device.type == "cuda" else None

    def launch(self, work: Callable[[], None]) -> Callable[[], None]:
        """Launch work that follows all that was launched before on the current stream.

        Call what is returned: it makes the current stream wait for the work. Until then it keeps the tensors that
        the work reads, of whose use on the other stream the allocator knows nothing.
        """
        if self._stream is None:
            work()
            return lambda: None
        begin, end = torch.cuda.Event(), torch.cuda.Event()
        begin.record()
        self._stream.wait_event(begin)
        with torch.cuda.stream(self._stream):
            work()
        end.record(self._stream)
        kept = [work]

        def wait() -> None:
            torch.cuda.current_stream().wait_event(end)
            kept.clear()

        return wait


class TritonCacheOps(TritonTransfers):
    """`CacheOps` over a cache on a CUDA device; methods are documented there.

    Launch grids are sized for `max_length` tokens, and so are page lists with `full_attention`.
    """

    def __init__(
        self,
        cache: KVCache,
        shape: AttentionShape,
        max_length: int,
        full_attention: bool = False,
        value_dim: int | None = None,
    ) -> None:
        super().__init__(cache)
        self._shape, self._full_attention, self._value_dim = shape, full_attention, value_dim
        self._max_pages = triton.cdiv(max_length, cache.shape.page_size)
        self._side_stream = SideStream(cache.buffer.device)
        # Triton's default for float32 is TF32, with 10 bits of mantissa.
        self._precision = "ieee" if cache.buffer.dtype == torch.float32 else "tf32"

    def slot_mapping(self, batch: StepBatch, table: Tensor | None = None) -> tuple[Tensor, Tensor]:
        cache, sizes, rows = self._cache, self._cache.shape, len(batch.seq_indices)
        table = cache.host_block_table if table is None else table
        host_slots, buffer_slots = torch.empty_like(batch.seq_indices), torch.empty_like(batch.seq_indices)
        slot_mapping.map_slots[(triton.cdiv(rows, 128),)](
            batch.seq_indices, batch.positions,
            table, cache.device_block_table, cache.fully_resident, host_slots, buffer_slots,
            rows, sizes.lru_pages, sizes.ring_pages, cache.host_block_table.stride(0),
            PAGE=sizes.page_size, BLOCK=128,
        )  # fmt: skip
        return host_slots, buffer_slots

    def write_index(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Add keys to the index, of each page at most one at a time."""
        cache = self._cache
        if cache.shape.index_kind == "none":
            return
        index = cache.index_of(layer)
        key_dim = index.shape[-1]
        keys = keys.view(len(keys), -1, key_dim)
        _check_contiguous_heads(keys)
        if len(keys):
            page_scores.write_index[(len(keys), keys.shape[1])](
                keys, index, host_slots, keys.stride(0),
                KV_HEADS=keys.shape[1], HEAD_DIM=key_dim, PADDED=triton.next_power_of_2(key_dim),
                BOUNDS=cache.shape.index_kind == "bounds", PAGE=cache.shape.page_size,
            )  # fmt: skip

    def page_scores(self, layer: int, q: Tensor, batch: StepBatch) -> Tensor:
        cache, shape = self._cache, self._shape
        _check_contiguous_heads(q)
        out = torch.empty((len(q), shape.heads, self._max_pages), dtype=torch.float32, device=q.device)
        block = 64
        page_scores.page_scores[(len(q), shape.kv_heads, triton.cdiv(self._max_pages, block))](
            q, cache.index_of(layer), out, batch.seq_indices, batch.positions, cache.host_block_table,
            shape.scale, q.stride(0), cache.host_block_table.stride(0), self._max_pages,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD_DIM=q.shape[2], PADDED=self._padded,
            PAGE=cache.shape.page_size,
            M=dot_size(shape.heads // shape.kv_heads), N=block,
            PRECISION=self._precision,
        )  # fmt: skip
        return out

    def indexer_scores(self, layer: int, q: Tensor, gates: Tensor, batch: StepBatch) -> Tensor:
        cache = self._cache
        _check_contiguous_heads(q)
        heads, key_dim = q.shape[1:]
        out = torch.empty((len(q), 1, self._max_pages), dtype=torch.float32, device=q.device)
        # A product in float32 takes many registers, as the compiler reports.
        block, warps = (16, 8) if q.dtype == torch.float32 else (64, 4)
        page_scores.indexer_scores[(len(q), triton.cdiv(self._max_pages, block))](
            q, gates, cache.index_of(layer), out, batch.seq_indices, batch.positions, cache.host_block_table,
            q.stride(0), gates.stride(0), cache.host_block_table.stride(0), self._max_pages,
            HEADS=heads, HEAD_DIM=key_dim, PADDED=dot_size(key_dim),
            M=dot_size(heads), N=block,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=warps,
        )  # fmt: skip
        return out

    def select_pages(self, layer: int, scores: Tensor, batch: StepBatch) -> SelectedPages:
        cache, sizes, at = self._cache, self._cache.shape, self._cache.sparse[layer]
        by_indexer = sizes.index_kind == "dsa"
        rows, heads = scores.shape[:2]
        width = self._max_pages if self._full_attention else min(sizes.top_pages, self._max_pages)

        def empty(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty((rows, sizes.kv_heads, *size), dtype=dtype, device=scores.device)

        pages, device_pages, counts = empty(width), empty(width), empty()
        swaps, swap_counts, mass = empty(width, 2), empty(), empty(dtype=torch.float32)
        keys_width = max(self._max_pages, sizes.lru_pages)
        beside = self._swaps_beside(rows, width)
        group = triton.next_power_of_2(heads // sizes.kv_heads)
        block = min(SELECT_BLOCK, SELECT_SCORES // group, triton.next_power_of_2(self._max_pages))
        weights = scores if by_indexer else empty(self._max_pages, dtype=torch.float32)
        page_select.select_pages[(rows, sizes.kv_heads)](
            scores, weights, empty(keys_width, dtype=torch.uint32),
            pages, device_pages, counts, swaps, swap_counts, mass, cache.hits, cache.misses, cache.mass,
            batch.seq_indices, batch.positions,
            cache.host_block_table, cache.device_block_table, cache.fully_resident, cache.full_attention,
            cache.device_page_of[at], cache.host_page_of[at], cache.last_use[at],
            self._shape.soft_cap or 0.0, sizes.top_pages, sizes.lru_pages, sizes.ring_pages,
            sizes.newest_selected, width, self._max_pages, cache.host_block_table.stride(0), keys_width,
            HEADS=heads, KV_HEADS=sizes.kv_heads, PADDED_GROUP=group,
            SINK=not by_indexer, SOFTMAX=not by_indexer, CAPPED=self._shape.soft_cap is not None,
            PENDING=beside, PAGE=sizes.page_size, BLOCK=block,
            LRU_BLOCK=min(SELECT_BLOCK, max(MIN_LRU_BLOCK, triton.next_power_of_2(sizes.lru_pages))),
            num_warps=SELECT_WARPS,
        )  # fmt: skip
        wait = None
        if beside:
            wait = self._side_stream.launch(partial(self._swap_in, layer, swaps, swap_counts))
        else:
            self._swap_in(layer, swaps, swap_counts)
        return SelectedPages(pages, PageLists(device_pages, counts, wait=wait), mass)

    def all_pages(self, batch: StepBatch, table: Tensor | None = None) -> PageLists:
        counts = torch.where(batch.valid, batch.positions // self._cache.shape.page_size + 1, 0)
        pages = self._cache.host_block_table if table is None else table
        return PageLists(pages, counts[:, None], by_sequence=True)

    def attend(self, layer: int, q: Tensor, lists: PageLists, batch: StepBatch) -> Tensor:
        """Attend; the output of a row without pages, padding included, is uninitialised memory."""
        shape, page_size = self._shape, self._cache.shape.page_size
        _check_contiguous_heads(q)
        max_tokens = min(lists.pages.shape[-1], self._max_pages) * page_size
        return paged_attention(
            q, self._cache.tokens(layer), page_size, lists.pages, lists.counts, batch.seq_indices, batch.positions,
            max_tokens, shape.scale, shape.soft_cap, shape.windows[layer], self._value_dim,
            None if shape.sinks is None else shape.sinks[layer], lists.by_sequence,
            _is_chained(len(q)), lists.wait,
        )  # fmt: skip

    def _swaps_beside(self, rows: int, width: int) -> bool:
        """Return whether swap-ins run beside attention: not if exchanged, chained, or of pages of one token."""
        shape = self._cache.shape
        programs = rows * shape.kv_heads * triton.cdiv(width * shape.page_size, paged_triton.SPLIT)
        return (
            shape.host_share.ranks == 1
            and shape.page_size > 1
            and not _is_chained(rows)
            and programs <= MOST_PENDING_PROGRAMS
        )


def _is_chained(rows: int) -> bool:
    """Return whether the kernels of a step are launched dependently (`gemv.pdl_launch_kwargs`)."""
    return rows <= GEMV_MAX_ROWS and triton_ops.supports_pdl()


def _check_contiguous_heads(x: Tensor) -> None:
    """Refuse heads of a row that are not next to each other: kernels take only the stride of rows."""
    if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
        raise ValueError(f"heads of a row must be contiguous, but strides are {x.stride()}")
