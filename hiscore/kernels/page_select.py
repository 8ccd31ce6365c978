"""Selection and residency in one program for each row and KV head: which pages, where they are, what must come.

The scores of a row's pages become weights (softmax for each query head, mean over the group), the largest are
chosen, each is looked up, and what is missing gets the places that were not used for longest. Blocks of places are
walked in order, so every list comes out ascending; only a row's own pages are walked, so a short row is quick.
"""

import triton
import triton.language as tl

from hiscore.kernels.top_k import ALWAYS, choose, float_key, kth_largest

LOG2E = tl.constexpr(1.4426950408889634)
# Below every score, and finite: its distance to itself is zero.
LEAST = tl.constexpr(-3.0e38)


@triton.jit
def select_and_place(
    scores, weights, keys, pages, places, counts, swaps, swap_counts, mass,
    total_hits, total_misses, total_mass,
    slots, positions, host_block_table, device_block_table, direct, full, where, holds, used,
    soft_cap, top_pages, lru_pages, ring_pages, newest_forced, width, max_pages, table_stride, keys_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PADDED_GROUP: tl.constexpr, SINK: tl.constexpr,
    SOFTMAX: tl.constexpr, CAPPED: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    LRU_BLOCK: tl.constexpr,
):  # fmt: skip
    """From scores to the pages to attend to and the list of those to copy; tables as `KVCache` has them.

    In: scores float32 [R, heads, max_pages] (without SOFTMAX: weights [R, kv_heads, max_pages] instead, which are
    chosen by as they are, and whose softmax is thought to be attention's shares).
    Out: pages, places int32 [R, kv_heads, width], counts int32 [R, kv_heads], mass float32 [R, kv_heads];
    swaps int32 [R, kv_heads, width, 2], pairs (page of the host, page of the buffer), of which swap_counts [R,
    kv_heads] count. keys: room for uint32 [R, kv_heads, keys_stride]. A grid of (R, kv_heads), each walking its
    pages BLOCK at a time, and the places under LRU LRU_BLOCK at a time.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    pair = row * KV_HEADS + head
    width_at = pair.to(tl.int64) * width
    pages += width_at
    places += width_at
    swaps += 2 * width_at
    keys += pair.to(tl.int64) * keys_stride
    weights += pair.to(tl.int64) * max_pages
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        _end_list(pages, places, 0, width, BLOCK)
        tl.store(counts + pair, 0)
        tl.store(swap_counts + pair, 0)
        tl.store(mass + pair, 0.0)
        return
    position = tl.load(positions + row)
    host_block_table += slot * table_stride
    device_block_table += slot * table_stride
    # From here on a table of pages is addressed for this head alone.
    where += head
    holds += head
    used += head
    newest = position // PAGE
    count = newest + 1
    # A stream's places in the buffer are as its pages, or those of the ring are fixed and the others under LRU.
    whole = tl.load(direct + slot).to(tl.int32)
    last_lru = tl.where(whole != 0, -1, newest - ring_pages)
    # A list has no room for more than its width.
    budget = tl.minimum(tl.where(tl.load(full + slot), width, top_pages), count)
    low = tl.zeros([], tl.uint32)
    allowed = count + 0
    greatest = tl.zeros([], tl.float32)
    total = tl.full([], 1.0, tl.float32)
    # Places that were scored: all or none.
    scored = tl.where(count > budget, count, 0)
    if scored > 0:
        if SOFTMAX:
            scores += (row.to(tl.int64) * HEADS + head * (HEADS // KV_HEADS)) * max_pages
            _page_weights(
                scores, weights, count, soft_cap, max_pages, HEADS // KV_HEADS, PADDED_GROUP, CAPPED, BLOCK
            )
            tl.debug_barrier()
        # An indexer's scores are chosen by as they are; their softmax is summed up beside that.
        tops = tl.full([BLOCK], LEAST, tl.float32)
        totals = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, count, BLOCK):
            place = begin + tl.arange(0, BLOCK)
            weight = tl.load(weights + place, mask=place < count, other=0.0)
            if not SOFTMAX:
                x = tl.where(place < count, weight * LOG2E, float("-inf"))
                new_tops = tl.maximum(tops, x)
                totals = totals * tl.exp2(tops - new_tops) + tl.exp2(x - new_tops)
                tops = new_tops
            key = float_key(weight)
            forced = place > newest - newest_forced
            if SINK:
                forced = forced | (place == 0)
            tl.store(keys + place, tl.where(forced, ALWAYS, key), mask=place < count)
        if not SOFTMAX:
            greatest = tl.max(tops, axis=0)
            total = tl.sum(totals * tl.exp2(tops - greatest), axis=0)
        tl.debug_barrier()
        low, allowed = kth_largest(keys, count, budget, ALWAYS, BLOCK)

    ties = count * 0
    taken = count * 0
    missing = count * 0
    captured = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        there = place < count
        key = tl.load(keys + place, mask=place < scored, other=0)
        chosen, rank, ties, taken = choose(key, there, low, allowed, ties, taken)
        counted = chosen & (place < scored)
        weight = tl.load(weights + place, mask=counted, other=0.0)
        if not SOFTMAX:
            weight = tl.where(counted, tl.exp2(weight * LOG2E - greatest), 0.0)
        captured += weight
        host = tl.load(host_block_table + place, mask=chosen, other=0).to(tl.int64)
        fixed = place > last_lru
        stands = tl.where(whole != 0, place, lru_pages + place % ring_pages)
        at = tl.load(device_block_table + stands, mask=chosen & fixed, other=0)
        found = tl.load(where + host * KV_HEADS, mask=chosen & (fixed == 0), other=-1)
        at = tl.where(fixed, at, found)
        tl.store(pages + rank, place, mask=chosen)
        tl.store(places + rank, at, mask=chosen)
        resident = chosen & (fixed == 0) & (found >= 0)
        tl.store(used + found.to(tl.int64) * KV_HEADS, 2 * position + 1, mask=resident)
        absent = chosen & (at < 0)
        order = missing + tl.cumsum(absent.to(tl.int32), axis=0) - 1
        tl.store(swaps + 2 * order, host.to(tl.int32), mask=absent)
        tl.store(swaps + 2 * order + 1, rank, mask=absent)
        missing += tl.sum(absent.to(tl.int32), axis=0)
    _end_list(pages, places, taken, width, BLOCK)
    share = tl.sum(captured, axis=0)
    if not SOFTMAX:
        share = share / total
    share = tl.where(scored > 0, share, 1.0)
    # Of scores that are no numbers nothing is known, and sums go on without them.
    tl.atomic_add(total_mass, tl.where(share >= 0, share, 0.0).to(tl.float64))
    tl.atomic_add(total_mass + 1, 1.0)
    tl.store(mass + pair, share)
    tl.store(counts + pair, taken)
    tl.store(swap_counts + pair, missing)
    tl.atomic_add(total_hits, (taken - missing).to(tl.int64))
    tl.atomic_add(total_misses, missing.to(tl.int64))
    if missing > 0:
        tl.debug_barrier()
        _make_room(
            keys,
            places,
            swaps,
            device_block_table,
            where,
            holds,
            used,
            position,
            missing,
            lru_pages,
            KV_HEADS,
            LRU_BLOCK,
        )


@triton.jit
def _end_list(pages, places, taken, width, BLOCK: tl.constexpr):
    for begin in range(taken, width, BLOCK):
        rest = begin + tl.arange(0, BLOCK)
        tl.store(pages + rest, -1, mask=rest < width)
        tl.store(places + rest, 0, mask=rest < width)


@triton.jit
def _page_weights(
    scores, weights, count, soft_cap, max_pages,
    GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr, CAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """weights [count] = mean over the group of each query head's softmax over its scores [GROUP, count]."""
    group = tl.arange(0, PADDED_GROUP)[:, None]
    top = tl.full([PADDED_GROUP], float("-inf"), tl.float32)
    total = tl.zeros([PADDED_GROUP], tl.float32)
    for begin in range(0, count, BLOCK):
        place = (begin + tl.arange(0, BLOCK))[None, :]
        there = (place < count) & (group < GROUP)
        x = tl.load(scores + group.to(tl.int64) * max_pages + place, mask=there, other=0.0)
        if CAPPED:
            x = soft_cap * (2 * tl.sigmoid(x * (2 / soft_cap)) - 1)
        x = tl.where(place < count, x * LOG2E, float("-inf"))
        new_top = tl.maximum(top, tl.max(x, axis=1))
        total = total * tl.exp2(top - new_top) + tl.sum(tl.exp2(x - new_top[:, None]), axis=1)
        top = new_top
    for begin in range(0, count, BLOCK):
        place = (begin + tl.arange(0, BLOCK))[None, :]
        there = (place < count) & (group < GROUP)
        x = tl.load(scores + group.to(tl.int64) * max_pages + place, mask=there, other=0.0)
        if CAPPED:
            x = soft_cap * (2 * tl.sigmoid(x * (2 / soft_cap)) - 1)
        share = tl.exp2(x * LOG2E - top[:, None]) / total[:, None]
        mean = tl.sum(tl.where(group < GROUP, share, 0.0), axis=0) / GROUP
        place = begin + tl.arange(0, BLOCK)
        tl.store(weights + place, mean, mask=place < count)


@triton.jit
def _make_room(
    keys, places, swaps, device_block_table, where, holds, used, position, missing, lru_pages,
    KV_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Give the missing pages the places that were not used for longest, both in ascending order."""
    for begin in range(0, lru_pages, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        there = place < lru_pages
        at = tl.load(device_block_table + place, mask=there, other=0).to(tl.int64)
        # Nothing is younger than what this step has found.
        age = 2 * position + 1 - tl.load(used + at * KV_HEADS, mask=there, other=0)
        tl.store(keys + place, age.to(tl.uint32), mask=there)
    tl.debug_barrier()
    low, allowed = kth_largest(keys, lru_pages, missing, (2 * position + 2).to(tl.uint32), BLOCK)
    ties = missing * 0
    taken = missing * 0
    for begin in range(0, lru_pages, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        there = place < lru_pages
        age = tl.load(keys + place, mask=there, other=0)
        victim, order, ties, taken = choose(age, there, low, allowed, ties, taken)
        at = tl.load(device_block_table + place, mask=victim, other=0)
        host = tl.load(swaps + 2 * order, mask=victim, other=0)
        rank = tl.load(swaps + 2 * order + 1, mask=victim, other=0)
        here = at.to(tl.int64) * KV_HEADS
        gone = tl.load(holds + here, mask=victim, other=-1)
        tl.store(where + gone.to(tl.int64) * KV_HEADS, -1, mask=victim & (gone >= 0))
        tl.store(where + host.to(tl.int64) * KV_HEADS, at, mask=victim)
        tl.store(holds + here, host, mask=victim)
        tl.store(used + here, 2 * position, mask=victim)
        tl.store(places + rank, at, mask=victim)
        tl.store(swaps + 2 * order + 1, at, mask=victim)
