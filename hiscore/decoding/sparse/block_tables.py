"""The tables that say where a sequence's pages are: set when it is admitted, and extended as it grows.

A sequence's part of the device buffer has two areas. The ring holds its newest pages, each at a fixed index. The
rest is managed as LRU (`hiscore.decoding.sparse.residency`): it starts with the first page and the pages before
the ring. A sequence that fits into its buffer has neither area: `KVCache.fully_resident`.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.decoding.interface.worker import Admission, Growth
from hiscore.decoding.kv_cache.buffer_pages import initial_pages
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.device.copies import upload


def admit(cache: KVCache, admission: Admission) -> tuple[Int64, Int64]:
    """Set a sequence's tables, with room for the next token at least; raise ValueError for unfit device pages.

    There are as many as host pages, and the whole sequence is resident; or the LRU area, then the ring; or none,
    without sparse layers. Returns the pages that its buffer starts with and device pages for them, int64 [n] each:
    the caller copies them.
    """
    shape, seq_index, length = cache.shape, admission.seq_index, admission.length
    host_pages, device_pages = admission.host_pages.astype(np.int64), admission.device_pages.astype(np.int64)
    resident = len(device_pages) == len(host_pages) or not shape.sparse_layers
    if not resident and (admission.full_attention or len(device_pages) != shape.lru_pages + shape.ring_pages):
        raise ValueError(
            f"device_pages has {len(device_pages)} pages for a sequence of {len(host_pages)}: it needs as many, "
            f"or lru_pages {shape.lru_pages} and ring_pages {shape.ring_pages} without full attention"
        )
    device = cache.host_block_table.device
    cache.host_block_table[seq_index, : len(host_pages)] = upload(admission.host_pages, device)
    if cache.windowed:
        windows = upload(admission.window_pages, device)
        cache.window_block_table[seq_index, : len(windows)] = windows
    cache.device_block_table[seq_index, : len(device_pages)] = upload(admission.device_pages, device)
    cache.fully_resident[seq_index].fill_(resident)
    cache.full_attention[seq_index].fill_(admission.full_attention)
    cache.reset(upload(host_pages, device), upload(device_pages, device))
    written = -(-length // shape.page_size) if shape.sparse_layers else 0
    if resident:
        return np.arange(written, dtype=np.int64), device_pages[:written]
    pages, places = initial_pages(length, shape.page_size, shape.lru_pages, shape.ring_pages)
    in_lru = places < shape.lru_pages
    _put_under_lru(cache, device_pages[places[in_lru]], host_pages[pages[in_lru]], length)
    return pages, device_pages[places]


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
    device_pages, host_pages = growth.device_pages[:spilled], growth.old_host_pages
    length = growth.start * cache.shape.page_size
    _put_under_lru(cache, device_pages.astype(np.int64), host_pages.astype(np.int64), length)
    cache.fully_resident[growth.seq_index].fill_(False)


def _put_under_lru(cache: KVCache, device_pages: Int64, host_pages: Int64, length: int) -> None:
    """Let device pages hold host pages, as if the last step of a sequence of this length had loaded them."""
    device = cache.host_block_table.device
    into, held = upload(device_pages, device), upload(host_pages, device)
    cache.device_page_of[:, held] = into.int()[:, None]
    cache.host_page_of[:, into] = held.int()[:, None]
    cache.last_use.index_fill_(1, into, 2 * (length - 1))


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


def slot_mapping(cache: KVCache, batch: StepBatch, table: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return new tokens' slots in a table's pages, by default host pages, and in the buffer: see `CacheOps`."""
    shape = cache.shape
    table = cache.host_block_table if table is None else table
    position = batch.positions.long()
    pages, offsets = position // shape.page_size, position % shape.page_size
    own = table[batch.table_rows, pages] * shape.page_size + offsets
    resident = cache.fully_resident[batch.table_rows]
    entry = torch.where(resident, pages, shape.lru_pages + pages % shape.ring_pages)
    buffer = cache.device_block_table[batch.table_rows, entry] * shape.page_size + offsets
    return torch.where(batch.valid, own, -1).int(), torch.where(batch.valid, buffer, -1).int()
