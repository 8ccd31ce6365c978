"""Residency of pages on the device, and the way of selected ones there: LRU and copies.

Outside its ring, a sequence's part of the device buffer takes the pages that selectors select, in place of the
least recently used ones. Each layer and KV head has its own residency. The pages that a sequence starts with are
up to `hiscore.decoding.sparse.block_tables`.
"""

import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.selection import Selection


def swap_in(cache: KVCache, layer: int, selection: Selection, batch: StepBatch) -> Tensor:
    """Bring the selected pages of a layer into the buffer; return device pages, int32 [R, H, K], 0 for none.

    Missing pages evict the least recently used ones, both in ascending order. A page selected by this step is
    never evicted by it.
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
    """Copy pages of single KV heads of a layer, int64 [n] each, from the host pool into the buffer."""
    copied = cache.read_host(layer, host_pages, heads)  # [n, C, P, head_dim]
    buffer = cache.buffer[cache.sparse[layer]].unflatten(0, (-1, cache.shape.page_size))
    buffer[device_pages, :, :, heads] = copied.transpose(1, 2)


def _look_up(table: Tensor, entries: Tensor) -> Tensor:
    """Gather entries, int64 [R, H, K], from rows of a table, [R, N]."""
    return table.gather(1, entries.flatten(1)).view(entries.shape)


def _least_recently_used(last_use: Tensor, counts: Tensor) -> Tensor:
    """Find the counts [R, H] least entries of last_use [R, H, n]: ascending indices, int64 [R, H, n], then n."""
    order = last_use.argsort(dim=-1, stable=True)
    entry = torch.arange(last_use.shape[-1])
    return torch.where(entry < counts[..., None], order, last_use.shape[-1]).sort(dim=-1).values
