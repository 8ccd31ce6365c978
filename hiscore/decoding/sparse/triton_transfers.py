"""The operations of `CacheOps` that move tokens between staging, device and host pool, by kernels."""

import torch
import triton
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.kernels import kv_transfer, page_scores
from hiscore.kernels.dot_size import dot_size

# Bytes in flight from the host at once: a few times the bus's bandwidth-delay product. More was not faster.
BYTES_IN_FLIGHT = 2**18
# Elements that one program copies at once.
COPY_ELEMENTS = 4096
# Programs that offload a prompt: few, because concurrent forwards are held up on each multiprocessor that
# stores to the host. With twice the elements each, they saturate the bus.
PROMPT_OFFLOAD_PROGRAMS = 3
# Offloads of at most this many tokens are too short to hold up anything, and use as many programs as swap-ins.
SHORT_OFFLOAD_TOKENS = 64
# Programs that copy what ranks have brought each other, from one place on the device to another.
PLACING_PROGRAMS = 512
# Bytes of a restored sequence that ranks merge at once.
MERGED_BYTES = 2**25


class TritonTransfers(CacheOps):
    """The copies of `CacheOps`, where their arguments are documented, for a cache on a CUDA device."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._padded = dot_size(cache.shape.head_dim)
        device, layers = cache.buffer.device, list(cache.on_host)
        # Where to find each of them: its position among the sparse layers, or -1 - its position among the dense
        # ones.
        layer_index = [cache.sparse.get(layer, -1 - cache.dense.get(layer, 0)) for layer in layers]
        self._layer_index = torch.tensor(layer_index, dtype=torch.int32, device=device)
        # Their places in staging.
        self._sparse, self._dense = (
            torch.tensor([cache.on_host[layer] for layer in kind], dtype=torch.int32, device=device)
            for kind in (cache.sparse, cache.dense)
        )
        self._windowed = torch.arange(len(cache.windowed), dtype=torch.int32, device=device)

    def offload_step(self, host_slots: Tensor, buffer_slots: Tensor) -> None:
        cache, sizes = self._cache, self._cache.shape
        if len(host_slots) and cache.on_host:
            kv_transfer.offload_rows[(len(host_slots), len(cache.on_host))](
                cache.buffer, cache.dense_kv, cache.host_kv, self._layer_index, buffer_slots, host_slots,
                cache.buffer.stride(0), cache.dense_kv.stride(0), cache.host_kv.stride(0),
                KV_HEADS=sizes.kv_heads, PARTS=sizes.kv_parts, PAGE=sizes.page_size,
                HEAD_DIM=sizes.head_dim, PADDED=self._padded,
                LINES=triton.next_power_of_2(sizes.kv_parts * sizes.kv_heads),
                RANKS=sizes.host_share.ranks, RANK=sizes.host_share.rank,
            )  # fmt: skip

    def offload_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        self._copy_pages(staging, slots, host_pages, to_host=True)

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        self._copy_pages(staging, slots, host_pages, to_host=False)
        if self._cache.shape.host_share.ranks > 1:
            self._merge(staging, slots)

    def index_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        cache, sizes = self._cache, self._cache.shape
        if sizes.index_kind == "bounds":
            pages = triton.cdiv(len(slots), sizes.page_size)
            page_scores.bound_pages[(pages, sizes.kv_heads, len(cache.sparse))](
                staging, slots, host_pages, cache.index, self._sparse, len(slots), staging.stride(0),
                cache.index.stride(0), ROW=sizes.kv_parts * sizes.kv_heads * sizes.head_dim,
                KV_HEADS=sizes.kv_heads, HEAD_DIM=sizes.head_dim, PADDED=self._padded, PAGE=sizes.page_size,
            )  # fmt: skip

    def fill_buffer(self, staging: Tensor, slots: Tensor, buffer_slots: Tensor) -> None:
        self._copy_rows(staging, self._cache.buffer, slots, buffer_slots, self._sparse)

    def fill_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        self._copy_rows(staging, self._cache.dense_kv, slots, host_slots, self._dense)

    def restore_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        self._copy_rows(self._cache.dense_kv, staging, host_slots, slots, self._dense)

    def keep_windows(self, slots: Tensor, window_slots: Tensor) -> None:
        tokens = self._cache.window_kv
        self._copy_rows(tokens, tokens, slots, window_slots, self._windowed)

    def _swap_in(self, layer: int, swaps: Tensor, swap_counts: Tensor) -> None:
        """Copy listed pages of a layer from the host: see `kv_transfer.swap_in`."""
        cache, share = self._cache, self._cache.shape.host_share
        _, programs = self._copy_launch(COPY_ELEMENTS)
        if share.ranks == 1:
            self._launch_swaps(layer, cache.exchange, swaps, swap_counts, programs, True, True)
            return
        # All that could be missing: how much is, nobody knows when a graph is captured.
        missing = cache.exchange[: swap_counts.numel() * min(swaps.shape[2], cache.shape.most_missing)]
        self._launch_swaps(layer, missing, swaps, swap_counts, programs * share.ranks, True, False)
        merged = cache.sharers.merge(missing)
        self._launch_swaps(layer, merged, swaps, swap_counts, PLACING_PROGRAMS, False, True)

    def _launch_swaps(
        self,
        layer: int,
        exchange: Tensor,
        swaps: Tensor,
        swap_counts: Tensor,
        programs: int,
        from_host: bool,
        to_buffer: bool,
    ) -> None:
        cache, sizes = self._cache, self._cache.shape
        pages_at_once, _ = self._copy_launch(COPY_ELEMENTS)
        pairs = swap_counts.numel()
        kv_transfer.swap_in[(min(programs, pairs * swaps.shape[2]),)](
            cache.host_kv[cache.on_host[layer]], exchange, cache.buffer[cache.sparse[layer]],
            swaps, swap_counts, pairs, swaps.shape[2], len(exchange) // pairs,
            KV_HEADS=sizes.kv_heads, PARTS=sizes.kv_parts, PAGE=sizes.page_size,
            HEAD_DIM=sizes.head_dim, PADDED=self._padded,
            PAGES=pages_at_once, PAIRS=triton.next_power_of_2(pairs),
            RANKS=sizes.host_share.ranks, RANK=sizes.host_share.rank,
            FROM_HOST=from_host, TO_BUFFER=to_buffer,
        )  # fmt: skip

    def _merge(self, staging: Tensor, slots: Tensor) -> None:
        """Complete a restored sequence, of which each rank has read what it stores."""
        tokens = max(1, MERGED_BYTES // (staging[0, 0].numel() * staging.element_size()))
        for part in slots.split(tokens):
            for layer in staging:
                read = layer.index_select(0, part)
                layer.index_copy_(0, part.long(), self._cache.sharers.merge(read))

    def _copy_pages(self, staging: Tensor, slots: Tensor, host_pages: Tensor, to_host: bool) -> None:
        cache, sizes = self._cache, self._cache.shape
        if not cache.on_host:
            return
        pages_at_once, programs = self._copy_launch(2 * COPY_ELEMENTS)
        units = triton.cdiv(len(slots), pages_at_once * sizes.page_size) * sizes.kv_heads * len(cache.on_host)
        if to_host and len(slots) > SHORT_OFFLOAD_TOKENS:
            programs = PROMPT_OFFLOAD_PROGRAMS
        kv_transfer.copy_pages[(min(programs, units),)](
            staging, slots, cache.host_kv, host_pages, len(slots), units,
            staging.stride(0), cache.host_kv.stride(0),
            KV_HEADS=sizes.kv_heads, PARTS=sizes.kv_parts, PAGE=sizes.page_size,
            HEAD_DIM=sizes.head_dim, PADDED=self._padded, PAGES=pages_at_once, TO_HOST=to_host,
            RANKS=sizes.host_share.ranks, RANK=sizes.host_share.rank,
        )  # fmt: skip

    def _copy_launch(self, elements: int) -> tuple[int, int]:
        """Pages that a program copies at once, and the programs that keep `BYTES_IN_FLIGHT`."""
        sizes, element_size = self._cache.shape, self._cache.host_kv.element_size()
        lines = sizes.kv_parts * sizes.page_size
        pages = max(1, triton.next_power_of_2(elements // (lines * self._padded)))
        return pages, max(1, BYTES_IN_FLIGHT // (pages * lines * sizes.head_dim * element_size))

    def _copy_rows(
        self, source: Tensor, target: Tensor, from_slots: Tensor, to_slots: Tensor, layers: Tensor
    ) -> None:
        if len(layers) and len(from_slots):
            row = target[0, 0].numel()
            kv_transfer.copy_rows[(len(from_slots), len(layers))](
                source, target, from_slots, to_slots, layers, source.stride(0), target.stride(0),
                FROM_ROW=source[0, 0].numel(), TO_ROW=row, BLOCK=triton.next_power_of_2(row),
            )  # fmt: skip
