"""Selection and residency in one program per row and KV head: which pages, where they are, and what is missing.

The scores of a row's pages become weights (softmax for each query head, mean over the group). The largest are
selected, each is looked up, and missing pages evict the least recently used ones. Blocks of pages are visited in
order, so that every list is ascending; only a row's own pages are visited, so that short rows are quick.
"""

import triton
import triton.language as tl

from hiscore.kernels.top_k import ALWAYS, float_key, kth_largest, select

LOG2E = tl.constexpr(1.4426950408889634)
# Below every score but finite, so that its difference to itself is 0 and not NaN.
LEAST = tl.constexpr(-3.0e38)


@triton.jit
def select_pages(
    scores, weights, keys, pages, device_pages, counts, swaps, swap_counts, mass,
    total_hits, total_misses, total_mass,
    seq_indices, positions, host_block_table, device_block_table, fully_resident, full_attention,
    device_page_of, host_page_of, last_use,
    soft_cap, top_pages, lru_pages, ring_pages, newest_selected, width, max_pages, table_stride, keys_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PADDED_GROUP: tl.constexpr, SINK: tl.constexpr,
    SOFTMAX: tl.constexpr, CAPPED: tl.constexpr, PENDING: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, LRU_BLOCK: tl.constexpr,
):  # fmt: skip
    """Select pages, look them up, and make room for the missing ones, which `kv_transfer.swap_in` then copies.

    Grid: (R, kv_heads). Pages are visited BLOCK at a time, LRU pages LRU_BLOCK at a time.

    In:
        scores: float32 [R, heads, max_pages], read under SOFTMAX.
        fully_resident, full_attention: bool [max_sequences].
        newest_selected: Newest pages that are always selected.
    Workspace:
        keys: uint32 [R, kv_heads, keys_stride].
        weights: float32 [R, kv_heads, max_pages], to select by. Without SOFTMAX they are given, and their softmax
            estimates the shares of attention.
    Out:
        pages: int32 [R, kv_heads, width], numbers within the sequence, ascending; then -1.
        device_pages: int32 [R, kv_heads, width]; 0 after the end. Under PENDING, ~page for a missing one.
        swaps: int32 [R, kv_heads, width, 2], missing pages as pairs (host page, device page).
        counts, swap_counts: int32 [R, kv_heads]: lengths of pages and swaps.
        mass: float32 [R, kv_heads], estimated share of attention.
    In place:
        total_hits, total_misses, total_mass: See `KVCache`.
        device_page_of: int32 [host pages, kv_heads].
        host_page_of, last_use: int32 [device pages, kv_heads].
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    pair = row * KV_HEADS + head
    width_at = pair.to(tl.int64) * width
    pages += width_at
    device_pages += width_at
    swaps += 2 * width_at
    keys += pair.to(tl.int64) * keys_stride
    weights += pair.to(tl.int64) * max_pages
    seq_index = tl.load(seq_indices + row).to(tl.int64)
    if seq_index < 0:
        _end_list(pages, device_pages, 0, width, BLOCK)
        tl.store(counts + pair, 0)
        tl.store(swap_counts + pair, 0)
        tl.store(mass + pair, 0.0)
        return
    position = tl.load(positions + row)
    host_block_table += seq_index * table_stride
    device_block_table += seq_index * table_stride
    # The residency tables of this head: entries are KV_HEADS apart.
    device_page_of += head
    host_page_of += head
    last_use += head
    newest = position // PAGE
    count = newest + 1
    # Pages up to last_lru are under LRU; those after it, in the ring or of a resident sequence, have fixed
    # entries.
    resident = tl.load(fully_resident + seq_index).to(tl.int32)
    last_lru = tl.where(resident != 0, -1, newest - ring_pages)
    budget = tl.minimum(tl.where(tl.load(full_attention + seq_index), width, top_pages), count)
    low = tl.zeros([], tl.uint32)
    allowed = count + 0
    greatest = tl.zeros([], tl.float32)
    total = tl.full([], 1.0, tl.float32)
    # Either all pages are scored, or none: then all are selected.
    scored = tl.where(count > budget, count, 0)
    if scored > 0:
        if SOFTMAX:
            scores += (row.to(tl.int64) * HEADS + head * (HEADS // KV_HEADS)) * max_pages
            _weights_and_keys(
                scores, weights, keys, count, newest - newest_selected, soft_cap, max_pages,
                HEADS // KV_HEADS, PADDED_GROUP, SINK, CAPPED, BLOCK,
            )  # fmt: skip
        else:
            # The scores are the keys; their softmax is only summed up for the mass.
            tops = tl.full([BLOCK], LEAST, tl.float32)
            totals = tl.zeros([BLOCK], tl.float32)
            for begin in range(0, count, BLOCK):
                page = begin + tl.arange(0, BLOCK)
                weight = tl.load(weights + page, mask=page < count, other=0.0)
                x = tl.where(page < count, weight * LOG2E, float("-inf"))
                new_tops = tl.maximum(tops, x)
                totals = totals * tl.exp2(tops - new_tops) + tl.exp2(x - new_tops)
                tops = new_tops
                tl.store(keys + page, _key(weight, page, newest - newest_selected, SINK), mask=page < count)
            greatest = tl.max(tops, axis=0)
            total = tl.sum(totals * tl.exp2(tops - greatest), axis=0)
        tl.debug_barrier()
        low, allowed = kth_largest(keys, count, budget, ALWAYS, BLOCK)

    ties = count * 0
    taken = count * 0
    misses = count * 0
    captured = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, count, BLOCK):
        page = begin + tl.arange(0, BLOCK)
        there = page < count
        key = tl.load(keys + page, mask=page < scored, other=0)
        selected, rank, ties, taken = select(key, there, low, allowed, ties, taken)
        weighed = selected & (page < scored)
        weight = tl.load(weights + page, mask=weighed, other=0.0)
        if not SOFTMAX:
            weight = tl.where(weighed, tl.exp2(weight * LOG2E - greatest), 0.0)
        captured += weight
        host_page = tl.load(host_block_table + page, mask=selected, other=0).to(tl.int64)
        fixed = page > last_lru
        entry = tl.where(resident != 0, page, lru_pages + page % ring_pages)
        device_page = tl.load(device_block_table + entry, mask=selected & fixed, other=0)
        held_by = tl.load(device_page_of + host_page * KV_HEADS, mask=selected & (fixed == 0), other=-1)
        device_page = tl.where(fixed, device_page, held_by)
        tl.store(pages + rank, page, mask=selected)
        tl.store(device_pages + rank, device_page, mask=selected)
        hit = selected & (fixed == 0) & (held_by >= 0)
        tl.store(last_use + held_by.to(tl.int64) * KV_HEADS, 2 * position + 1, mask=hit)
        miss = selected & (device_page < 0)
        order = misses + tl.cumsum(miss.to(tl.int32), axis=0) - 1
        tl.store(swaps + 2 * order, host_page.to(tl.int32), mask=miss)
        # For now the page's rank in the list; `_make_room` replaces it by a device page.
        tl.store(swaps + 2 * order + 1, rank, mask=miss)
        misses += tl.sum(miss.to(tl.int32), axis=0)
    _end_list(pages, device_pages, taken, width, BLOCK)
    share = tl.sum(captured, axis=0)
    if not SOFTMAX:
        share = share / total
    share = tl.where(scored > 0, share, 1.0)
    # NaN scores say nothing about their row, and must not spoil the sum over all rows.
    tl.atomic_add(total_mass, tl.where(share >= 0, share, 0.0).to(tl.float64))
    tl.atomic_add(total_mass + 1, 1.0)
    tl.store(mass + pair, share)
    tl.store(counts + pair, taken)
    tl.store(swap_counts + pair, misses)
    tl.atomic_add(total_hits, (taken - misses).to(tl.int64))
    tl.atomic_add(total_misses, misses.to(tl.int64))
    if misses > 0:
        tl.debug_barrier()
        _make_room(
            keys, device_pages, swaps, device_block_table, device_page_of, host_page_of, last_use,
            position, misses, lru_pages, KV_HEADS, PENDING, LRU_BLOCK,
        )  # fmt: skip


@triton.jit
def _end_list(pages, device_pages, taken, width, BLOCK: tl.constexpr):
    for begin in range(taken, width, BLOCK):
        rest = begin + tl.arange(0, BLOCK)
        tl.store(pages + rest, -1, mask=rest < width)
        tl.store(device_pages + rest, 0, mask=rest < width)


@triton.jit
def _key(weight, page, last_free, SINK: tl.constexpr):
    """Keys to select pages by; those after `last_free`, and with SINK the first one, are always selected."""
    forced = page > last_free
    if SINK:
        forced = forced | (page == 0)
    return tl.where(forced, ALWAYS, float_key(weight))


@triton.jit
def _weights_and_keys(
    scores, weights, keys, count, last_free, soft_cap, max_pages,
    GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr, SINK: tl.constexpr, CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """weights [count]: mean over the group of each head's softmax of its scores [GROUP, count]. And their keys."""
    group = tl.arange(0, PADDED_GROUP)[:, None]
    top = tl.full([PADDED_GROUP], float("-inf"), tl.float32)
    total = tl.zeros([PADDED_GROUP], tl.float32)
    for begin in range(0, count, BLOCK):
        page = (begin + tl.arange(0, BLOCK))[None, :]
        there = (page < count) & (group < GROUP)
        x = tl.load(scores + group.to(tl.int64) * max_pages + page, mask=there, other=0.0)
        if CAPPED:
            x = soft_cap * (2 * tl.sigmoid(x * (2 / soft_cap)) - 1)
        x = tl.where(page < count, x * LOG2E, float("-inf"))
        new_top = tl.maximum(top, tl.max(x, axis=1))
        total = total * tl.exp2(top - new_top) + tl.sum(tl.exp2(x - new_top[:, None]), axis=1)
        top = new_top
    for begin in range(0, count, BLOCK):
        page = (begin + tl.arange(0, BLOCK))[None, :]
        there = (page < count) & (group < GROUP)
        x = tl.load(scores + group.to(tl.int64) * max_pages + page, mask=there, other=0.0)
        if CAPPED:
            x = soft_cap * (2 * tl.sigmoid(x * (2 / soft_cap)) - 1)
        share = tl.exp2(x * LOG2E - top[:, None]) / total[:, None]
        mean = tl.sum(tl.where(group < GROUP, share, 0.0), axis=0) / GROUP
        page = begin + tl.arange(0, BLOCK)
        tl.store(weights + page, mean, mask=page < count)
        tl.store(keys + page, _key(mean, page, last_free, SINK), mask=page < count)


@triton.jit
def _make_room(
    keys, device_pages, swaps, device_block_table, device_page_of, host_page_of, last_use,
    position, misses, lru_pages,
    KV_HEADS: tl.constexpr, PENDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Assign the least recently used device pages to the missing pages, both in ascending order."""
    for begin in range(0, lru_pages, BLOCK):
        entry = begin + tl.arange(0, BLOCK)
        there = entry < lru_pages
        device_page = tl.load(device_block_table + entry, mask=there, other=0).to(tl.int64)
        # At least 0: the greatest last_use is that of this step's hits.
        age = 2 * position + 1 - tl.load(last_use + device_page * KV_HEADS, mask=there, other=0)
        tl.store(keys + entry, age.to(tl.uint32), mask=there)
    tl.debug_barrier()
    low, allowed = kth_largest(keys, lru_pages, misses, (2 * position + 2).to(tl.uint32), BLOCK)
    ties = misses * 0
    taken = misses * 0
    for begin in range(0, lru_pages, BLOCK):
        entry = begin + tl.arange(0, BLOCK)
        there = entry < lru_pages
        age = tl.load(keys + entry, mask=there, other=0)
        victim, order, ties, taken = select(age, there, low, allowed, ties, taken)
        device_page = tl.load(device_block_table + entry, mask=victim, other=0)
        host_page = tl.load(swaps + 2 * order, mask=victim, other=0)
        rank = tl.load(swaps + 2 * order + 1, mask=victim, other=0)
        of_head = device_page.to(tl.int64) * KV_HEADS
        evicted = tl.load(host_page_of + of_head, mask=victim, other=-1)
        tl.store(device_page_of + evicted.to(tl.int64) * KV_HEADS, -1, mask=victim & (evicted >= 0))
        tl.store(device_page_of + host_page.to(tl.int64) * KV_HEADS, device_page, mask=victim)
        tl.store(host_page_of + of_head, host_page, mask=victim)
        tl.store(last_use + of_head, 2 * position, mask=victim)
        tl.store(device_pages + rank, ~device_page if PENDING else device_page, mask=victim)
        tl.store(swaps + 2 * order + 1, device_page, mask=victim)
