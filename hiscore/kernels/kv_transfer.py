"""Copies between the host pool, the device's pools of tokens, and the staging pool.

The host pool is pinned memory that the multiprocessors read and write themselves: no copy engine, no list on the
CPU. A page of a head is one run of memory there, [C, P, D]; on the device a token is, [C, kv_heads, D].
"""

import triton
import triton.language as tl


@triton.jit
def swap_in(
    host, buffer, swaps, swap_counts, pairs, width,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PAGES: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Copy the listed pages: host [host pages, kv_heads, C, P, D] -> buffer [slots, C, kv_heads, D].

    swaps int32 [R, kv_heads, width, 2], swap_counts int32 [R, kv_heads]: as `select_and_place` left them; pairs is
    R * kv_heads, at most PAIRS. A grid of any number of programs, which share all lists, PAGES of one list at
    once: few of them keep the bus busy, and more would only stand in the way of other kernels.
    """
    LINES: tl.constexpr = PARTS * PAGE
    pair = tl.arange(0, PAIRS)
    counts = tl.load(swap_counts + pair, mask=pair < pairs, other=0)
    turns = tl.cdiv(counts, PAGES)
    ends = tl.cumsum(turns, axis=0)
    line = tl.arange(0, PAGES * LINES)
    part, offset = line % LINES // PAGE, line % PAGE
    d = tl.arange(0, PADDED)[None, :]
    for turn in range(tl.program_id(0), tl.sum(turns, axis=0), tl.num_programs(0)):
        mine = tl.sum((ends <= turn).to(tl.int32), axis=0)
        first = (turn - tl.sum(tl.where(pair < mine, turns, 0), axis=0)) * PAGES
        count = tl.sum(tl.where(pair == mine, counts, 0), axis=0)
        head = mine % KV_HEADS
        swap = first + line // LINES
        there = swap < count
        listed = swaps + 2 * (mine.to(tl.int64) * width + swap)
        source = tl.load(listed, mask=there, other=0).to(tl.int64)
        target = tl.load(listed + 1, mask=there, other=0).to(tl.int64)
        mask = there[:, None] & (d < WIDTH)
        at = ((source * KV_HEADS + head) * LINES + line % LINES)[:, None] * WIDTH + d
        to = (((target * PAGE + offset) * PARTS + part) * KV_HEADS + head)[:, None] * WIDTH + d
        # The host's memory changes between steps, and a first-level cache would not notice.
        tl.store(buffer + to, tl.load(host + at, mask=mask, other=0.0, cache_modifier=".cg"), mask=mask)


@triton.jit
def back_up_rows(
    buffer, home, host, layer_places, buffer_slots, host_slots, buffer_stride, home_stride, host_stride,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    """Copy one new token of each row, in all layers, to the host pool [L, host pages, kv_heads, C, P, D].

    layer_places: int32 [L], a sparse layer's place in buffer [Ls, slots, C, kv_heads, D], or -1 - a dense layer's
    in home. host_slots int32 [R]: slots of the host's pages, -1 for none. A grid of (R, L).
    """
    row = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    home_slot = tl.load(host_slots + row).to(tl.int64)
    if home_slot < 0:
        return
    buffer_slot = tl.load(buffer_slots + row).to(tl.int64)
    place = tl.load(layer_places + layer).to(tl.int64)
    line = tl.arange(0, LINES)
    d = tl.arange(0, PADDED)[None, :]
    mask = (line < PARTS * KV_HEADS)[:, None] & (d < WIDTH)
    if place >= 0:
        at = buffer + place * buffer_stride + buffer_slot * (PARTS * KV_HEADS * WIDTH)
    else:
        at = home + (-1 - place) * home_stride + home_slot * (PARTS * KV_HEADS * WIDTH)
    value = tl.load(at + line[:, None] * WIDTH + d, mask=mask, other=0.0)
    part, head = line // KV_HEADS, line % KV_HEADS
    page = (home_slot // PAGE * KV_HEADS + head) * PARTS + part
    to = host + layer * host_stride + (page * PAGE + home_slot % PAGE)[:, None] * WIDTH + d
    tl.store(to, value, mask=mask)


@triton.jit
def copy_pages(
    pool, slots, host, host_pages, tokens, units, pool_stride, host_stride,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PAGES: tl.constexpr, TO_HOST: tl.constexpr,
):  # fmt: skip
    """Tokens between pool [L, slots, C, kv_heads, D] and host [L, host pages, kv_heads, C, P, D].

    Token t stands at slots[t] of the pool (int32 [tokens]) and in page host_pages[t // P] (int32). units: PAGES
    pages of a head of a layer each. A grid of any number of programs, few for the reason of `swap_in`.
    """
    LINES: tl.constexpr = PARTS * PAGE
    groups = tl.cdiv(tokens, PAGES * PAGE)
    line = tl.arange(0, PAGES * LINES)
    part = line % LINES // PAGE
    d = tl.arange(0, PADDED)[None, :]
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        head = unit % KV_HEADS
        page = unit // KV_HEADS % groups * PAGES + line // LINES
        layer = (unit // KV_HEADS // groups).to(tl.int64)
        token = page * PAGE + line % PAGE
        there = token < tokens
        mask = there[:, None] & (d < WIDTH)
        slot = tl.load(slots + token, mask=there, other=0).to(tl.int64)
        here = pool + layer * pool_stride + ((slot * PARTS + part) * KV_HEADS + head)[:, None] * WIDTH + d
        run = (tl.load(host_pages + page, mask=there, other=0).to(tl.int64) * KV_HEADS + head) * LINES
        there_at = host + layer * host_stride + (run + line % LINES)[:, None] * WIDTH + d
        if TO_HOST:
            tl.store(there_at, tl.load(here, mask=mask, other=0.0), mask=mask)
        else:
            tl.store(here, tl.load(there_at, mask=mask, other=0.0, cache_modifier=".cg"), mask=mask)


@triton.jit
def copy_rows(
    source, target, from_slots, to_slots, layers, source_stride, target_stride,
    FROM_ROW: tl.constexpr, TO_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """target[i, to_slots] = source[layers[i], from_slots], the first TO_ROW of a token's FROM_ROW numbers.

    from_slots, to_slots: int32 [n]; layers: int32. A grid of (n, layers).
    """
    token = tl.program_id(0)
    layer = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < TO_ROW
    at = (
        tl.load(layers + layer).to(tl.int64) * source_stride
        + tl.load(from_slots + token).to(tl.int64) * FROM_ROW
    )
    to = layer.to(tl.int64) * target_stride + tl.load(to_slots + token).to(tl.int64) * TO_ROW
    tl.store(target + to + column, tl.load(source + at + column, mask=inside, other=0.0), mask=inside)
