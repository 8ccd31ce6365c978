"""Which pages of a sequence are on the device, and how selected ones get there: tables, LRU and copies.

A sequence's part of the device buffer has two areas. The ring holds its newest pages, each at a fixed index.
The rest is managed as LRU: it starts with the first page and those before the ring, and takes the pages that
selectors select. Each layer and KV head has its own residency. A sequence that fits into its buffer has none:
`KVCache.fully_resident`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.selection import Selection
from hiscore.decoding.worker.interface import Growth
from hiscore.device import upload


@dataclass(frozen=True)
class InitialPages:
    """What an admitted sequence's buffer must be filled with, in all sparse layers and heads.

    Attributes:
        pages: int64 [n] on the CPU, page numbers within the sequence.
        device_pages: int64 [n] on the CPU, the device pages that take them.
    """

    pages: Tensor
    device_pages: Tensor


def admit(
    cache: KVCache,
    seq_index: int,
    length: int,
    host_pages: Tensor,
    device_pages: Tensor,
    full_attention: bool = False,
) -> InitialPages:
    """Set a sequence's tables; the caller then copies the pages that are returned.

    Args:
        cache: Updated in place.
        seq_index: The sequence's row of the tables.
        length: Tokens that it has.
        host_pages: int64 on the CPU, with room for the next token at least.
        device_pages: int64 on the CPU. As many as host pages: the whole sequence is resident. Else the LRU area,
            then the ring. None without sparse layers.
        full_attention: It attends to everything.

    Raises:
        ValueError: The number of device pages is neither.
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
    cache.device_block_table[seq_index, : len(device_pages)] = upload(device_pages.int(), device)
    cache.fully_resident[seq_index].fill_(resident)
    cache.full_attention[seq_index].fill_(full_attention)
    cache.reset(upload(host_pages, device), upload(device_pages, device))
    written = -(-length // shape.page_size) if shape.sparse_layers else 0
    if resident:
        return InitialPages(torch.arange(written), device_pages[:written])
    # The next token may start a page, which then replaces the ring's oldest.
    ring_start = max(0, length // shape.page_size - shape.ring_pages + 1)
    ring = torch.arange(ring_start, written)
    sink = min(1, ring_start)
    before_ring = torch.arange(max(sink, ring_start - shape.lru_pages + 1), ring_start)
    lru = torch.cat((torch.arange(sink), before_ring))
    lru_device_pages = device_pages[: len(lru)]
    into, held = upload(lru_device_pages, device), upload(host_pages[lru], device)
    cache.device_page_of[:, held] = into.int()[:, None]
    cache.host_page_of[:, into] = held.int()[:, None]
    # As if the step before the first one had loaded them.
    cache.last_use.index_fill_(1, into, 2 * (length - 1))
    return InitialPages(
        torch.cat((lru, ring)),
        torch.cat((lru_device_pages, device_pages[shape.lru_pages + ring % shape.ring_pages])),
    )


def grow(cache: KVCache, growths: Sequence[Growth]) -> None:
    """Add pages to the tables of running sequences.

    Args:
        cache: Updated in place.
        growths: Of different sequences.
    """
    device = cache.host_block_table.device
    host = _table_entries((each.seq_index, each.start, each.host_pages) for each in growths)
    _write_table(cache.host_block_table, host)
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
    """A resident sequence becomes one with an LRU area and a ring; its tokens stay where they are."""
    device = cache.host_block_table.device
    into = upload(growth.device_pages[:spilled].astype(np.int64), device)
    held = upload(growth.old_host_pages.astype(np.int64), device)
    cache.device_page_of[:, held] = into.int()[:, None]
    cache.host_page_of[:, into] = held.int()[:, None]
    # As if its last step had loaded them.
    cache.last_use.index_fill_(1, into, 2 * (growth.start * cache.shape.page_size - 1))
    cache.fully_resident[growth.seq_index].fill_(False)


def _table_entries(pages: Iterable[tuple[int, int, Int32]]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values, on the CPU, of runs of entries of a table: (row, first column, values)."""
    entries = [
        (np.full(len(values), row), start + np.arange(len(values)), values) for row, start, values in pages
    ]
    rows, columns, values = (torch.from_numpy(np.concatenate(each)) for each in zip(*entries, strict=True))
    return rows, columns, values.int()


def _write_table(table: Tensor, entries: tuple[Tensor, Tensor, Tensor]) -> None:
    rows, columns, values = (upload(each, table.device) for each in entries)
    table.index_put_((rows, columns), values)


def slot_mapping(cache: KVCache, batch: StepBatch) -> tuple[Tensor, Tensor]:
    """Where a step's new tokens go.

    Returns:
        int32 [R] each, -1 for padding: slots in host pages (host pool, dense layers, index); slots in the buffer.
    """
    shape = cache.shape
    position = batch.positions.long()
    pages, offsets = position // shape.page_size, position % shape.page_size
    host = cache.host_block_table[batch.table_rows, pages] * shape.page_size + offsets
    resident = cache.fully_resident[batch.table_rows]
    entry = torch.where(resident, pages, shape.lru_pages + pages % shape.ring_pages)
    buffer = cache.device_block_table[batch.table_rows, entry] * shape.page_size + offsets
    return torch.where(batch.valid, host, -1).int(), torch.where(batch.valid, buffer, -1).int()


def host_pages_of(cache: KVCache, selection: Selection, batch: StepBatch) -> Tensor:
    """The host pages of selected pages: int32 [R, H, K], 0 where nothing was selected."""
    return _pages_of(cache.host_block_table, selection, batch)


def resident_pages_of(cache: KVCache, selection: Selection, batch: StepBatch) -> Tensor:
    """The device pages of selected pages of resident sequences: int32 [R, H, K], 0 where nothing was selected."""
    return _pages_of(cache.device_block_table, selection, batch)


def swap_in(cache: KVCache, layer: int, selection: Selection, batch: StepBatch) -> Tensor:
    """Bring the selected pages of a layer into the device buffer.

    Missing pages evict the least recently used ones, both in ascending order. A page selected by this step is
    never evicted by it.

    Args:
        cache: Updated in place.
        layer: Index among all layers.
        selection: Pages per row and KV head.
        batch: Rows of the step.

    Returns:
        int32 [R, H, K]: device pages; 0 where nothing was selected.
    """
    shape, at = cache.shape, cache.sparse[layer]
    device_page_of, host_page_of, last_use = (
        cache.device_page_of[at],
        cache.host_page_of[at],
        cache.last_use[at],
    )
    selected = selection.pages >= 0
    pages = selection.pages.long().clamp(min=0)
    position = batch.positions.long()
    head = torch.arange(shape.kv_heads)[:, None]

    table = cache.device_block_table[batch.table_rows]
    resident = cache.fully_resident[batch.table_rows][:, None, None]
    in_ring = pages > (position // shape.page_size)[:, None, None] - shape.ring_pages
    under_lru = selected & ~resident & ~in_ring
    fixed = _look_up(table, torch.where(resident, pages, shape.lru_pages + pages % shape.ring_pages))
    host_pages = _look_up(cache.host_block_table[batch.table_rows], pages).long()
    held_by = device_page_of[host_pages, head]
    device_pages = torch.where(under_lru, held_by, fixed)

    row, of_head, rank = torch.nonzero(under_lru & (held_by >= 0), as_tuple=True)
    # Greater than any other step's: pages that this step hit are the last to be evicted.
    last_use[device_pages[row, of_head, rank].long(), of_head] = (2 * position[row] + 1).int()
    missing = under_lru & (held_by < 0)
    row, of_head, rank = torch.nonzero(missing, as_tuple=True)
    cache.hits += selected.sum() - len(row)
    cache.misses += len(row)
    if len(row):
        lru = table[:, : shape.lru_pages].long().clamp(min=0)
        victims = _least_recently_used(last_use[lru[:, None], head], missing.sum(-1))
        into = lru[row, victims[row, of_head, missing.cumsum(-1)[row, of_head, rank] - 1]]
        evicted = host_page_of[into, of_head].long()
        held = evicted >= 0
        device_page_of[evicted[held], of_head[held]] = -1
        host_page = host_pages[row, of_head, rank]
        device_page_of[host_page, of_head], host_page_of[into, of_head] = into.int(), host_page.int()
        last_use[into, of_head] = (2 * position[row]).int()
        device_pages[row, of_head, rank] = into.int()
        copy_pages(cache, layer, host_page, of_head, into)
    return device_pages.masked_fill(~selected, 0)


def copy_pages(cache: KVCache, layer: int, host_pages: Tensor, heads: Tensor, device_pages: Tensor) -> None:
    """Copy pages of single heads of a layer from the host pool into the buffer.

    Args:
        cache: Updated in place.
        layer: Index among all layers.
        host_pages: int64 [n].
        heads: int64 [n], KV heads.
        device_pages: int64 [n].
    """
    copied = cache.host_kv[layer][host_pages, heads]  # [n, C, P, head_dim]
    buffer = cache.buffer[cache.sparse[layer]].unflatten(0, (-1, cache.shape.page_size))
    buffer[device_pages, :, :, heads] = copied.transpose(1, 2)


def _pages_of(table: Tensor, selection: Selection, batch: StepBatch) -> Tensor:
    found = _look_up(table[batch.table_rows], selection.pages.long().clamp(min=0))
    return found.masked_fill(selection.pages < 0, 0)


def _look_up(table: Tensor, entries: Tensor) -> Tensor:
    """table [R, N], entries int64 [R, H, K] -> [R, H, K]."""
    return table.gather(1, entries.flatten(1)).view(entries.shape)


def _least_recently_used(last_use: Tensor, counts: Tensor) -> Tensor:
    """The counts [R, H] least entries of last_use [R, H, n]: their indices, ascending, int64 [R, H, n]; then n."""
    order = last_use.argsort(dim=-1, stable=True)
    entry = torch.arange(last_use.shape[-1])
    return torch.where(entry < counts[..., None], order, last_use.shape[-1]).sort(dim=-1).values
