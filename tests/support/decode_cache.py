"""A cache with known contents: sequences join, take steps and leave, and freed pages are poisoned."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import divided
from hiscore.decoding.interface.worker import NO_PAGES, Admission
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.block_tables import admit, slot_mapping

Contents = Callable[[int, int, Tensor], Tensor]
"""From a sequence's number, a layer and positions int64 [n] to keys and values [n, C, H, D]."""


def unique_contents(shape: CacheShape) -> Contents:
    """No two numbers are the same, and all are exact in float64."""
    row = shape.kv_parts * shape.kv_heads * shape.head_dim

    def contents(sequence: int, layer: int, positions: Tensor) -> Tensor:
        token = (sequence * shape.layers + layer) * shape.max_pages * shape.page_size + positions
        values = token[:, None] * row + torch.arange(row)
        return values.double().unflatten(1, (shape.kv_parts, shape.kv_heads, shape.head_dim))

    return contents


class KnownCache:
    """A `KVCache`, written to as a forward and the offload would. Everything starts and ends as poison.

    Layers with a window are left out.

    Args:
        shape: All sizes.
        contents: Keys and values of every token.
        newest: Tokens by which the offload may be behind.
        dtype: Of keys and values.
    """

    def __init__(
        self,
        shape: CacheShape,
        contents: Contents,
        newest: int,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.shape, self._newest = shape, newest
        self.contents: Contents = lambda sequence, layer, at: contents(sequence, layer, at).to(dtype)
        self.cache = KVCache.allocate(shape, dtype, torch.device("cpu"))
        poison(self.cache, torch.arange(shape.host_pages), torch.arange(shape.device_pages))
        self.lengths: dict[int, int] = {}
        self.pages: dict[int, tuple[Tensor, Tensor]] = {}
        self.number: dict[int, int] = {}
        self._next_number = 0
        rng = np.random.default_rng(1)
        self._free_host = rng.permutation(shape.host_pages).tolist()
        self._free_device = rng.permutation(shape.device_pages).tolist()

    def admit(
        self,
        seq_index: int,
        length: int,
        capacity: int,
        full: bool = False,
        buffer: int = 0,
    ) -> bool:
        """Admit a sequence if the pools have room; returns whether they do.

        Args:
            seq_index: Its row in the tables.
            length: Tokens of its prompt.
            capacity: Tokens that it may ever have.
            full: It attends to everything.
            buffer: Device pages; 0: as many as it needs.
        """
        shape = self.shape
        needed = -(-capacity // shape.page_size)
        device = buffer or (needed if full else min(needed, shape.buffer_pages))
        if needed > len(self._free_host) or device > len(self._free_device):
            return False
        host_pages = torch.tensor([self._free_host.pop() for _ in range(needed)])
        device_pages = torch.tensor([self._free_device.pop() for _ in range(device)])
        self.pages[seq_index], self.lengths[seq_index] = (host_pages, device_pages), length
        self.number[seq_index] = self._next_number
        self._next_number += 1
        everything = torch.arange(length)
        self._to_host(seq_index, everything)
        ring = np.zeros(len(host_pages) if shape.windowed else 0, np.int32)
        held = (each.int().numpy() for each in (host_pages, device_pages))
        admission = Admission(seq_index, length, *held, NO_PAGES, full, None, ring)
        seeded, into = (
            torch.from_numpy(divided(pages, shape.page_size)) for pages in admit(self.cache, admission)
        )
        into = into[seeded < length]
        host_slots = (
            host_pages[everything // shape.page_size] * shape.page_size + everything % shape.page_size
        )
        for layer in shape.host_layers:
            rows = self.contents(self.number[seq_index], layer, everything)
            if layer in shape.dense_layers:
                self.cache.tokens(layer)[host_slots] = rows
            else:
                self.cache.tokens(layer)[into] = rows[seeded[seeded < length]]
        return True

    def rows(self, seq_indices: Sequence[int], padding: int = 0) -> StepBatch:
        positions = [self.lengths[seq_index] for seq_index in seq_indices]
        return StepBatch(
            torch.tensor([*seq_indices, *[-1] * padding], dtype=torch.int32),
            torch.tensor([*positions, *[0] * padding], dtype=torch.int32),
        )

    def write(self, rows: StepBatch) -> None:
        """Write a step's tokens in all layers, as a forward does before it attends."""
        host_slots, buffer = slot_mapping(self.cache, rows)
        for layer in self.shape.host_layers:
            for row, seq_index in enumerate(rows.seq_indices.tolist()):
                if seq_index < 0:
                    assert host_slots[row] == buffer[row] == -1
                    continue
                at = (host_slots if layer in self.shape.dense_layers else buffer)[row]
                token = self.contents(self.number[seq_index], layer, rows.positions[row].long()[None])
                self.cache.tokens(layer)[at.long()] = token[0]

    def end_step(self, rows: StepBatch) -> None:
        """Offload as late as allowed: when one token more than `newest` is missing from the host."""
        for seq_index in rows.seq_indices[rows.valid].tolist():
            self.lengths[seq_index] += 1
            landed = self.lengths[seq_index] - self._newest
            if landed >= 0:
                self._to_host(seq_index, torch.tensor([landed]))

    def leave(self, seq_index: int) -> None:
        host_pages, device_pages = self.pages.pop(seq_index)
        del self.lengths[seq_index], self.number[seq_index]
        poison(self.cache, host_pages, device_pages)
        self._free_host.extend(host_pages.tolist())
        self._free_device.extend(device_pages.tolist())

    def _to_host(self, seq_index: int, positions: Tensor) -> None:
        page, offset = (
            self.pages[seq_index][0][positions // self.shape.page_size],
            positions % self.shape.page_size,
        )
        for layer, at in self.cache.on_host.items():
            rows = self.contents(self.number[seq_index], layer, positions)
            self.cache.host_kv[at][page, :, :, offset] = rows.transpose(1, 2)


def forget(cache: KVCache, seq_index: int) -> None:
    """Drop residency of everything in a sequence's buffer but its ring."""
    if not cache.fully_resident[seq_index]:
        lru_pages = cache.device_block_table[seq_index, : cache.shape.lru_pages].long()
        held = cache.host_page_of[:, lru_pages]
        layer, entry, head = torch.nonzero(held >= 0, as_tuple=True)
        cache.device_page_of[layer, held[layer, entry, head].long(), head] = -1
        cache.host_page_of[:, lru_pages] = -1
        cache.last_use[:, lru_pages] = -1


def poison(
    cache: KVCache, host_pages: Tensor, device_pages: Tensor, window_pages: Tensor | None = None
) -> None:
    """Overwrite freed pages with NaN in every tensor, so that a stale read shows.

    Args:
        cache: Updated in place.
        host_pages: int64 [n].
        device_pages: int64 [n].
        window_pages: int64 [n]; None: none.
    """
    page, nan = cache.shape.page_size, float("nan")
    here, at = cache.stored(host_pages.to(cache.host_kv.device))
    cache.host_kv[:, at[here]] = nan
    cache.dense_kv.unflatten(1, (-1, page))[:, host_pages if len(cache.dense) else host_pages[:0]] = nan
    cache.buffer.unflatten(1, (-1, page))[:, device_pages] = nan
    if cache.windowed and window_pages is not None:
        pages = cache.window_kv[:, : cache.shape.window_pages * page].unflatten(1, (-1, page))
        pages[:, window_pages] = nan
    if cache.shape.index_kind == "bounds":
        cache.index[:, host_pages] = nan
    elif cache.shape.index_kind != "none":
        # Bytes of 255 are NaN as fp8 and as float32.
        rubbish = nan if cache.index.is_floating_point() else 255
        cache.index.unflatten(1, (-1, page))[:, host_pages] = rubbish
