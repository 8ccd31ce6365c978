"""Sizes of decoding's KV cache, and the shape of each of its tensors."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import torch

from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, PromptPool
from hiscore.parallel.shard import WHOLE, Shard

IndexKind = Literal["none", "bounds", "dsa"]
"""Index of the keys for a selector: none, each page's bounds, or an indexer's own keys."""

MAX_SELECTABLE_PAGES = 2**21 - 1
"""Pages that the kernels can count, in 21 bits."""


def newest_selected(index_kind: IndexKind, ring_pages: int) -> int:
    """Count the newest pages that every selection contains: by bounds all of the ring, beside the first page."""
    return ring_pages if index_kind == "bounds" else 0


@dataclass(frozen=True)
class CacheShape:
    """Sizes of the cache.

    Attributes:
        kv_heads: Heads of the cache; 1 for a latent (MLA).
        kv_parts: Vectors per token and head: 2 for a key and a value, 1 for a latent.
        head_dim: Length of such a vector; a latent's includes its rotary part.
        page_size: Tokens per page.
        max_sequences: Rows of the block tables.
        max_pages: Pages of the longest sequence.
        lru_pages: Pages of a sequence's part of the buffer that swap-ins replace, least recently used first.
        ring_pages: Pages that follow them and hold the sequence's newest tokens.
        top_pages: Pages selected per sequence and KV head.
        dense_layers: Layers whose KV stays on the device: they attend to everything or to a window.
        windowed: Dense layers that keep their window only, on the device alone.
        recurrent: Layers without keys and values, which the cache has nothing of.
        window_ring: Pages of these layers that a sequence has at most: its page p is its p % window_ring-th.
        prefill_rows: Tokens of a prefill that wait in these layers, behind the pages, until it has run.
        index_dim: Length of an index key of a checkpoint's own indexer ("dsa").
        sharing_layers: Sparse layers that attend to what a layer before them selected; they need no index.
        prompts_in: Memory for prefill. Device buffers that serve as such have room for all layers, and the dense
            layers must be the first.
        host_share: Share of the host pool's pages that is stored here: page p is stored by rank p % ranks.

    Raises:
        ValueError: More pages than the kernels can count; the message names the field.
    """

    layers: int
    kv_heads: int
    kv_parts: int
    head_dim: int
    page_size: int
    max_sequences: int
    max_pages: int
    host_pages: int
    device_pages: int
    lru_pages: int
    ring_pages: int
    top_pages: int
    dense_layers: frozenset[int] = frozenset()
    windowed: frozenset[int] = frozenset()
    recurrent: frozenset[int] = frozenset()
    window_pages: int = 0
    window_ring: int = 0
    prefill_rows: int = 0
    index_kind: IndexKind = "none"
    index_dim: int = 0
    sharing_layers: frozenset[int] = frozenset()
    prompts_in: PromptPool = "staging"
    host_share: Shard = WHOLE

    def __post_init__(self) -> None:
        assert min(self.layers, self.kv_heads, self.kv_parts, self.head_dim, self.page_size) > 0
        assert min(self.max_sequences, self.max_pages, self.host_pages, self.ring_pages) > 0
        assert self.device_pages > 0 or not self.sparse_layers
        assert self.top_pages > self.newest_selected
        assert self.lru_pages >= self.top_pages, "a step must not evict what it has selected itself"
        assert self.index_kind != "none" or not self.sparse_layers
        assert self.index_kind != "dsa" or self.page_size == 1
        assert self.windowed <= self.dense_layers
        assert not self.windowed or 0 < self.window_ring <= self.window_pages
        assert not self.windowed or self.prefill_rows > 0
        assert self.prompts_in != "buffers" or self.whole_layers == self.host_layers[: len(self.whole_layers)]
        for name in ("max_pages", "lru_pages") if self.sparse_layers else ():
            if getattr(self, name) > MAX_SELECTABLE_PAGES:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at most {MAX_SELECTABLE_PAGES}")
        for name in ("host_pages", "device_pages"):
            if getattr(self, name) * self.page_size > 2**31 - 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)} with {self.page_size} tokens each: slots must fit int32"
                )
        if self.window_slots > 2**31 - 1:
            raise ValueError(f"window_pages is {self.window_pages}: slots must fit int32")

    @property
    def buffer_pages(self) -> int:
        """Device pages of a sequence that has more than these; a shorter one is resident as a whole."""
        return self.lru_pages + self.ring_pages

    @property
    def newest_selected(self) -> int:
        return newest_selected(self.index_kind, self.ring_pages)

    @cached_property
    def sparse_layers(self) -> tuple[int, ...]:
        """Layers that attend to selected pages."""
        others = self.dense_layers | self.recurrent
        return tuple(layer for layer in range(self.layers) if layer not in others)

    @cached_property
    def host_layers(self) -> tuple[int, ...]:
        """Layers that have a copy on the host, and a place in staging, in this order."""
        others = self.windowed | self.recurrent
        return tuple(layer for layer in range(self.layers) if layer not in others)

    @cached_property
    def whole_layers(self) -> tuple[int, ...]:
        """Dense layers that keep all of a sequence on the device."""
        return tuple(sorted(self.dense_layers - self.windowed))

    @property
    def window_slots(self) -> int:
        """Tokens of a windowed layer: of its pages, and of a prefill."""
        return self.window_pages * self.page_size + self.prefill_rows if self.windowed else 0

    @cached_property
    def indexed_layers(self) -> tuple[int, ...]:
        """Sparse layers that make their own selection."""
        return tuple(layer for layer in self.sparse_layers if layer not in self.sharing_layers)

    @property
    def stored_pages(self) -> int:
        """Pages of the host pool that this rank stores; one at least, which may be nobody's."""
        return max(self.host_share.count_dealt(self.host_pages), 1)

    @property
    def most_missing(self) -> int:
        """Pages that a row and head of a step can miss in a layer."""
        return min(self.top_pages, self.max_pages)

    def tensors(self, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of each tensor of `KVCache`, by its name."""
        row = (self.kv_parts, self.kv_heads, self.head_dim)
        buffered = len(self.sparse_layers if self.prompts_in != "buffers" else self.host_layers)
        dense, sparse, indexed = len(self.whole_layers), len(self.sparse_layers), len(self.indexed_layers)
        index = {
            "none": (0,),
            "bounds": (indexed, self.host_pages, self.kv_heads, 2, self.head_dim),
            "dsa": (indexed, self.host_pages * self.page_size, self.index_dim),
        }[self.index_kind]
        # All tables have one width with room for any index into a buffer, so that look-ups need no bounds check.
        table = (self.max_sequences, max(self.max_pages, self.buffer_pages))
        host = (
            len(self.host_layers),
            self.stored_pages,
            self.kv_heads,
            self.kv_parts,
            self.page_size,
            self.head_dim,
        )
        exchanged = self.max_sequences * self.kv_heads * self.most_missing
        exchange = (exchanged if sparse and self.host_share.ranks > 1 else 0, *host[3:])
        return {
            "host_kv": (host, dtype),
            "exchange": (exchange, dtype),
            "dense_kv": ((dense, self.host_pages * self.page_size if dense else 0, *row), dtype),
            "window_kv": ((len(self.windowed), self.window_slots, *row), dtype),
            "buffer": ((buffered, self.device_pages * self.page_size, *row), dtype),
            "index": (index, dtype),
            "host_block_table": (table, torch.int32),
            "device_block_table": (table, torch.int32),
            "window_block_table": ((table[0] if self.windowed else 0, table[1]), torch.int32),
            "fully_resident": ((self.max_sequences,), torch.bool),
            "full_attention": ((self.max_sequences,), torch.bool),
            "device_page_of": ((sparse, self.host_pages, self.kv_heads), torch.int32),
            "host_page_of": ((sparse, self.device_pages, self.kv_heads), torch.int32),
            "last_use": ((sparse, self.device_pages, self.kv_heads), torch.int32),
            "hits": ((1,), torch.int64),
            "misses": ((1,), torch.int64),
            "mass": ((2,), torch.float64),
        }

    def bytes(self, dtype: torch.dtype) -> dict[str, int]:
        """Return the bytes of each tensor of `KVCache`, by its name; all but `host_kv` are on the device."""
        return {name: prod(shape) * kind.itemsize for name, (shape, kind) in self.tensors(dtype).items()}

    def staging_bytes(self, pages: int, dtype: torch.dtype) -> int:
        """Count the bytes of staging pages: rows of the host's layers, and keys of the checkpoint's indexer."""
        rows = len(self.host_layers) * self.kv_parts * self.kv_heads * self.head_dim
        keys = (self.layers - len(self.sharing_layers)) * self.index_dim
        return pages * STAGING_PAGE_SIZE * (rows + keys) * dtype.itemsize
