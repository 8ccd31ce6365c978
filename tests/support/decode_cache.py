"""A cache whose right contents are known: streams that join, take steps and leave, with poison behind them."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.residency import admit, slot_mapping
from hiscore.decoding.sparse.selection import Selector

Contents = Callable[[int, int, Tensor], Tensor]
"""From a stream's number, a layer and positions int64 [n] to rows [n, C, H, D]."""


def unique_contents(shape: CacheShape) -> Contents:
    """No two numbers are the same, and all are exact in float64."""
    row = shape.kv_parts * shape.kv_heads * shape.head_dim

    def contents(stream: int, layer: int, positions: Tensor) -> Tensor:
        token = (stream * shape.layers + layer) * shape.max_pages * shape.page_size + positions
        values = token[:, None] * row + torch.arange(row)
        return values.double().unflatten(1, (shape.kv_parts, shape.kv_heads, shape.head_dim))

    return contents


def random_contents(shape: CacheShape, seed: int, streams: int) -> Contents:
    size = (
        streams,
        shape.layers,
        shape.max_pages * shape.page_size,
        shape.kv_parts,
        shape.kv_heads,
        shape.head_dim,
    )
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return lambda stream, layer, positions: values[stream, layer, positions]


class KnownCache:
    """A `KVCache` and what a forward and the backup would do to it.

    newest: of how many tokens the backup may be behind. Everything starts as poison and returns to it.
    """

    def __init__(
        self,
        shape: CacheShape,
        contents: Contents,
        newest: int,
        selector: Callable[[KVCache], Selector] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.shape, self._newest = shape, newest
        self.contents: Contents = lambda stream, layer, at: contents(stream, layer, at).to(dtype)
        self.cache = KVCache.allocate(shape, dtype, torch.device("cpu"))
        poison(self.cache, torch.arange(shape.host_pages), torch.arange(shape.device_pages))
        self.selector = selector(self.cache) if selector else None
        self.lengths: dict[int, int] = {}
        self.pages: dict[int, tuple[Tensor, Tensor]] = {}
        self.number: dict[int, int] = {}
        self._next_number = 0
        rng = np.random.default_rng(1)
        self._free_host = rng.permutation(shape.host_pages).tolist()
        self._free_device = rng.permutation(shape.device_pages).tolist()

    def admit(
        self,
        slot: int,
        length: int,
        capacity: int,
        full: bool = False,
        number: int | None = None,
        buffer: int = 0,
    ) -> bool:
        """Let a stream with a prompt in, if the pools have room; buffer: device pages, if not the usual number."""
        shape = self.shape
        needed = -(-capacity // shape.page_size)
        device = buffer or (needed if full else min(needed, shape.buffer_pages))
        if needed > len(self._free_host) or device > len(self._free_device):
            return False
        host_pages = torch.tensor([self._free_host.pop() for _ in range(needed)])
        device_pages = torch.tensor([self._free_device.pop() for _ in range(device)])
        self.pages[slot], self.lengths[slot] = (host_pages, device_pages), length
        self.number[slot] = self._next_number if number is None else number
        self._next_number += 1
        everything = torch.arange(length)
        self._to_host(slot, everything)
        seeds = admit(self.cache, slot, length, host_pages, device_pages, full)
        offsets = torch.arange(shape.page_size)
        seeded = (seeds.pages[:, None] * shape.page_size + offsets).flatten()
        into = (seeds.device_pages[:, None] * shape.page_size + offsets).flatten()[seeded < length]
        home = host_pages[everything // shape.page_size] * shape.page_size + everything % shape.page_size
        for layer in range(shape.layers):
            rows = self.contents(self.number[slot], layer, everything)
            if layer in shape.dense_layers:
                self.cache.tokens(layer)[home] = rows
            else:
                self.cache.tokens(layer)[into] = rows[seeded[seeded < length]]
                if self.selector:
                    self.selector.write(layer, rows[:, 0], home.int())
        return True

    def rows(self, slots: Sequence[int], padding: int = 0) -> StepBatch:
        positions = [self.lengths[slot] for slot in slots]
        return StepBatch(
            torch.tensor([*slots, *[-1] * padding], dtype=torch.int32),
            torch.tensor([*positions, *[0] * padding], dtype=torch.int32),
        )

    def write(self, rows: StepBatch) -> None:
        """What a forward does before it attends: keep its tokens, in all layers."""
        home, buffer = slot_mapping(self.cache, rows)
        for layer in range(self.shape.layers):
            for row, slot in enumerate(rows.seq_indices.tolist()):
                if slot < 0:
                    assert home[row] == buffer[row] == -1
                    continue
                at = (home if layer in self.shape.dense_layers else buffer)[row]
                token = self.contents(self.number[slot], layer, rows.positions[row].long()[None])
                self.cache.tokens(layer)[at.long()] = token[0]
                if self.selector and layer not in self.shape.dense_layers:
                    self.selector.write(layer, token[:, 0], home[row, None])

    def end_step(self, rows: StepBatch) -> None:
        """The backup lands as late as it may: when the newest tokens are one more than may be missing."""
        for slot in rows.seq_indices[rows.valid].tolist():
            self.lengths[slot] += 1
            landed = self.lengths[slot] - self._newest
            if landed >= 0:
                self._to_host(slot, torch.tensor([landed]))

    def leave(self, slot: int) -> None:
        host_pages, device_pages = self.pages.pop(slot)
        del self.lengths[slot], self.number[slot]
        poison(self.cache, host_pages, device_pages)
        self._free_host.extend(host_pages.tolist())
        self._free_device.extend(device_pages.tolist())

    def _to_host(self, slot: int, positions: Tensor) -> None:
        page, offset = (
            self.pages[slot][0][positions // self.shape.page_size],
            positions % self.shape.page_size,
        )
        for layer in range(self.shape.layers):
            rows = self.contents(self.number[slot], layer, positions)
            self.cache.host_kv[layer][page, :, :, offset] = rows.transpose(1, 2)


def forget(cache: KVCache, slot: int) -> None:
    """Let nothing of a stream's buffer but its ring count as resident."""
    if not cache.fully_resident[slot]:
        places = cache.device_block_table[slot, : cache.shape.lru_pages].long()
        held = cache.host_page_of[:, places]
        layer, place, head = torch.nonzero(held >= 0, as_tuple=True)
        cache.device_page_of[layer, held[layer, place, head].long(), head] = -1
        cache.host_page_of[:, places] = -1
        cache.last_use[:, places] = -1


def poison(cache: KVCache, host_pages: Tensor, device_pages: Tensor) -> None:
    """Overwrite freed pages (int64 [n] each) with NaN wherever they lie, so that a stale read shows."""
    page, nan = cache.shape.page_size, float("nan")
    cache.host_kv[:, host_pages.to(cache.host_kv.device)] = nan
    cache.dense_kv.unflatten(1, (-1, page))[:, host_pages if len(cache.dense) else host_pages[:0]] = nan
    cache.buffer.unflatten(1, (-1, page))[:, device_pages] = nan
    if cache.shape.index_kind == "bounds":
        cache.index[:, host_pages] = nan
    elif cache.shape.index_kind != "none":
        cache.index.unflatten(1, (-1, page))[:, host_pages] = nan
