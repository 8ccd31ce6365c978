"""Which pages of a stream are on the device, and how the selected ones come there: tables, LRU, copies.

A stream's buffer has two parts. The ring holds its newest pages, each at a place given by its number. The rest is
under LRU: it starts with the first page and those before the ring, and takes in what a selector asks for. Each
layer and head has residency of its own. A stream that fits into its buffer needs none: `KVCache.fully_resident`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache, StepBatch
from hiscore.decoding.sparse.selection import Selection
from hiscore.device import upload


@dataclass(frozen=True)
class Seeds:
    """What an admitted stream's buffer must be filled with: int64 [n] each, on the CPU.

    pages: the stream's own pages; places: the pages of the device that take them, in all sparse layers and heads.
    """

    pages: Tensor
    places: Tensor


def seed(
    cache: KVCache, slot: int, length: int, host_pages: Tensor, device_pages: Tensor, full: bool = False
) -> Seeds:
    """Set an admitted stream's tables; the caller then copies what is returned.

    length: tokens that it has; host_pages, device_pages: int64 on the CPU, for its whole life. With as many of the
    latter as of the former the buffer holds the whole stream; without sparse layers there are none.

    Raises:
        ValueError: the number of device pages fits neither.
    """
    shape = cache.shape
    direct = len(device_pages) == len(host_pages) or not shape.sparse_layers
    if not direct and (full or len(device_pages) != shape.lru_pages + shape.ring_pages):
        raise ValueError(
            f"device_pages has {len(device_pages)} pages for a stream of {len(host_pages)}: needed are as many, "
            f"or lru_pages {shape.lru_pages} and ring_pages {shape.ring_pages} for one that is not full"
        )
    device = cache.host_block_table.device
    cache.host_block_table[slot, : len(host_pages)] = upload(host_pages.int(), device)
    cache.device_block_table[slot, : len(device_pages)] = upload(device_pages.int(), device)
    cache.fully_resident[slot].fill_(direct)
    cache.full_attention[slot].fill_(full)
    cache.reset(upload(host_pages, device), upload(device_pages, device))
    written = -(-length // shape.page) if shape.sparse_layers else 0
    if direct:
        return Seeds(torch.arange(written), device_pages[:written])
    # The next token may begin a page: then that page takes the oldest place of the ring.
    ring_start = max(0, length // shape.page - shape.ring_pages + 1)
    ring = torch.arange(ring_start, written)
    sink = min(1, ring_start)
    before = torch.arange(max(sink, ring_start - shape.lru_pages + 1), ring_start)
    kept = torch.cat((torch.arange(sink), before))
    under_lru = device_pages[: len(kept)]
    places, held = upload(under_lru, device), upload(host_pages[kept], device)
    cache.device_page_of[:, held] = places.int()[:, None]
    cache.host_page_of[:, places] = held.int()[:, None]
    # As if the step before the first had loaded them.
    cache.last_use.index_fill_(1, places, 2 * (length - 1))
    return Seeds(
        torch.cat((kept, ring)),
        torch.cat((under_lru, device_pages[shape.lru_pages + ring % shape.ring_pages])),
    )


def newest_slots(cache: KVCache, rows: StepBatch) -> tuple[Tensor, Tensor]:
    """Where a step's new tokens go: slots of `home` and of `buffer`, int32 [R] each, -1 for padding."""
    shape = cache.shape
    position = rows.positions.long()
    pages, offsets = position // shape.page, position % shape.page
    home = cache.host_block_table[rows.streams, pages] * shape.page + offsets
    place = torch.where(cache.fully_resident[rows.streams], pages, shape.lru_pages + pages % shape.ring_pages)
    buffer = cache.device_block_table[rows.streams, place] * shape.page + offsets
    return torch.where(rows.valid, home, -1).int(), torch.where(rows.valid, buffer, -1).int()


def home_pages(cache: KVCache, selection: Selection, rows: StepBatch) -> Tensor:
    """The pages of `home` that hold selected pages: int32 [R, H, K], 0 for none."""
    table = cache.host_block_table[rows.streams]
    return _look_up(table, selection.pages.long().clamp(min=0)).masked_fill(selection.pages < 0, 0)


def swap_in(cache: KVCache, layer: int, selection: Selection, rows: StepBatch) -> Tensor:
    """Bring a layer's selected pages to the device: int32 [R, H, K], the pages of `buffer`, 0 for none.

    A missing page takes the place that was not used for longest; a step's places in ascending order take its
    missing pages in ascending order. What a step has selected is never moved out.
    """
    shape, at = cache.shape, cache.sparse[layer]
    where, holds, used = cache.device_page_of[at], cache.host_page_of[at], cache.last_use[at]
    chosen = selection.pages >= 0
    pages = selection.pages.long().clamp(min=0)
    position, streams = rows.positions.long(), rows.streams
    head = torch.arange(shape.heads)[:, None]

    table = cache.device_block_table[streams]
    direct = cache.fully_resident[streams][:, None, None]
    in_ring = pages > (position // shape.page)[:, None, None] - shape.ring_pages
    under_lru = chosen & ~direct & ~in_ring
    fixed = _look_up(table, torch.where(direct, pages, shape.lru_pages + pages % shape.ring_pages))
    home = _look_up(cache.host_block_table[streams], pages).long()
    found = where[home, head]
    places = torch.where(under_lru, found, fixed)

    row, of, rank = torch.nonzero(under_lru & (found >= 0), as_tuple=True)
    # No other step of the stream has used so great a key: what was found now is the last to go.
    used[places[row, of, rank].long(), of] = (2 * position[row] + 1).int()
    missing = under_lru & (found < 0)
    row, of, rank = torch.nonzero(missing, as_tuple=True)
    cache.hits += chosen.sum() - len(row)
    cache.misses += len(row)
    if len(row):
        lru = table[:, : shape.lru_pages].long().clamp(min=0)
        victims = _oldest(used[lru[:, None], head], missing.sum(-1))
        into = lru[row, victims[row, of, missing.cumsum(-1)[row, of, rank] - 1]]
        out = holds[into, of].long()
        gone = out >= 0
        where[out[gone], of[gone]] = -1
        page = home[row, of, rank]
        where[page, of], holds[into, of] = into.int(), page.int()
        used[into, of] = (2 * position[row]).int()
        places[row, of, rank] = into.int()
        load(cache, layer, page, of, into)
    return places.masked_fill(~chosen, 0)


def load(cache: KVCache, layer: int, host_pages: Tensor, heads: Tensor, device_pages: Tensor) -> None:
    """Copy pages of heads of one layer from the host pool into the buffer: int64 [n] each."""
    units = cache.host_kv[layer][host_pages, heads]  # [n, C, P, D]
    buffer = cache.buffer[cache.sparse[layer]].unflatten(0, (-1, cache.shape.page))
    buffer[device_pages, :, :, heads] = units.transpose(1, 2)


def _look_up(table: Tensor, entries: Tensor) -> Tensor:
    """table [R, N], entries int64 [R, H, K] -> [R, H, K]."""
    return table.gather(1, entries.flatten(1)).view(entries.shape)


def _oldest(used: Tensor, counts: Tensor) -> Tensor:
    """The counts [R, H] places that were not used for longest, of used [R, H, n]: ascending, int64 [R, H, n]."""
    order = used.argsort(dim=-1, stable=True)
    each = torch.arange(used.shape[-1])
    return torch.where(each < counts[..., None], order, used.shape[-1]).sort(dim=-1).values
