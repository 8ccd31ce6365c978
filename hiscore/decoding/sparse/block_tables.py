"""The tables that say where a sequence's pages are: set when it is admitted, and extended as it grows.

A sequence's part of the device buffer has two areas. The ring holds its newest pages, each at a fixed index. The
rest is managed as LRU (`hiscore.decoding.sparse.residency`): it starts with the first page and the pages before
the ring. A sequence that fits into its buffer has neither area: `KVCache.fully_resident`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.interface.worker import NO_PAGES, Growth
from hiscore.decoding.kv_cache.buffer_pages import initial_pages
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.device.copies import upload


@dataclass(frozen=True)
class InitialPages:
    """Pages that an admitted sequence's buffer starts with, and device pages for them: int64 [n], on the CPU."""

    pages: Tensor
    device_pages: Tensor


def admit(
    cache: KVCache,
    seq_index: int,
    length: int,
    host_pages: Tensor,
    device_pages: Tensor,
    full_attention: bool = False,
    window_pages: Int32 = NO_PAGES,
) -> InitialPages:
    """Set a sequence's tables; the caller then copies the pages that are returned.

    Args:
        host_pages: int64 on the CPU, with room for the next token at least.
        device_pages: int64 on the CPU. As many as host pages: the whole sequence is resident. Else the LRU area,
            then the ring. None without sparse layers. Another number raises ValueError.
    """
    shape = cache.shape
    resident = len(device_pages) == len(host_pages) or not shape.sparse_layers
    if not resident and (full_attention or len(device_pages) != shape.lru_pages + shape.ring_pages):
        raise ValueError(
            f"device_pages has {len(device_pages)} pages for a sequence of {len(host_pages)}: it needs as many, "
            f"or lru_pages {shape.lru_pages} and ring_pages {shape.ring_pages} without full attention"
        )
    device = cache.host_block_table.device
    cache.host_block_table[seq_index, : len(host_pages)] = upload(host_pages.int(), device)
    if cache.windowed:
        cache.window_block_table[seq_index, : len(window_pages)] = upload(window_pages, device)
    cache.device_block_table[seq_index, : len(device_pages)] = upload(device_pages.int(), device)
    cache.fully_resident[seq_index].fill_(resident)
    cache.full_attention[seq_index].fill_(full_attention)
    cache.reset(upload(host_pages, device), upload(device_pages, device))
    written = -(-length // shape.page_size) if shape.sparse_layers else 0
    if resident:
        return InitialPages(torch.arange(written), device_pages[:written])
    found = initial_pages(length, shape.page_size, shape.lru_pages, shape.ring_pages)
    pages, places = (torch.from_numpy(each) for each in found)
    in_lru = places < shape.lru_pages
    into = upload(device_pages[places[in_lru]], device)
    held = upload(host_pages[pages[in_lru]], device)
    cache.device_page_of[:, held] = into.int()[:, None]
    cache.host_page_of[:, into] = held.int()[:, None]
    # As if the step before the first one had loaded them.
    cache.last_use.index_fill_(1, into, 2 * (length - 1))
    return InitialPages(pages, device_pages[places])


def grow(cache: KVCache, growths: Sequence[Growth]) -> None:
    """Add pages to the tables of running sequences, at most one growth for each."""
    device = cache.host_block_table.device
    host = _table_entries((each.seq_index, each.start, each.host_pages) for each in growths)
    _write_table(cache.host_block_table, host)
    if cache.windowed:
        windows = _table_entries((each.seq_index, each.start, each.window_pages) for each in growths)
        _write_table(cache.window_block_table, windows)
    buffers = (
        (each.seq_index, each.start if each.spilled is None else 0, each.device_pages) for each in growths
    )
    buffer = _table_entries(buffers)
    _write_table(cache.device_block_table, buffer)
    cache.reset(upload(host[2].long(), device), upload(buffer[2].long(), device))
    for each in growths:
        if each.spilled is not None:
            _spill(cache, each, each.spilled)


def _spill(cache: KVCache, growth: Growth, spilled: int) -> None:
    """Give a resident sequence an LRU area and a ring; its tokens stay where they are."""
    device = cache.host_block_table.device
    into = upload(growth.device_pages[:spilled].astype(np.int64), device)
    held = upload(growth.old_host_pages.astype(np.int64), device)
    cache.device_page_of[:, held] = into.int()[:, None]
    cache.host_page_of[:, into] = held.int()[:, None]
    # As if its last step had loaded them.
    cache.last_use.index_fill_(1, into, 2 * (growth.start * cache.shape.page_size - 1))
    cache.fully_resident[growth.seq_index].fill_(False)


def _table_entries(pages: Iterable[tuple[int, int, Int32]]) -> tuple[Tensor, Tensor, Tensor]:
    """Flatten runs of a table's entries, (row, first column, values), into rows, columns and values on the CPU."""
    entries = [
        (np.full(len(values), row), start + np.arange(len(values)), values) for row, start, values in pages
    ]
    rows, columns, values = (torch.from_numpy(np.concatenate(each)) for each in zip(*entries, strict=True))
    return rows, columns, values.int()


def _write_table(table: Tensor, entries: tuple[Tensor, Tensor, Tensor]) -> None:
    rows, columns, values = (upload(each, table.device) for each in entries)
    table.index_put_((rows, columns), values)


def slot_mapping(cache: KVCache, batch: StepBatch) -> tuple[Tensor, Tensor]:
    """Return new tokens' slots in host pages (dense layers, index) and the buffer: int32 [R], -1 for padding."""
    shape = cache.shape
    position = batch.positions.long()
    pages, offsets = position // shape.page_size, position % shape.page_size
    host = cache.host_block_table[batch.table_rows, pages] * shape.page_size + offsets
    resident = cache.fully_resident[batch.table_rows]
    entry = torch.where(resident, pages, shape.lru_pages + pages % shape.ring_pages)
    buffer = cache.device_block_table[batch.table_rows, entry] * shape.page_size + offsets
    return torch.where(batch.valid, host, -1).int(), torch.where(batch.valid, buffer, -1).int()


def window_slots(cache: KVCache, batch: StepBatch) -> Tensor:
    """Return the slots of a step's new tokens in windowed layers: int32 [R], -1 for padding."""
    page_size, position = cache.shape.page_size, batch.positions.long()
    pages = cache.window_block_table[batch.table_rows, position // page_size]
    return torch.where(batch.valid, pages * page_size + position % page_size, -1).int()
