"""Copies between the host pool, the device's caches and the staging pool.

The host pool is pinned memory that the multiprocessors read and write themselves: no copy engine, no list of
copies on the CPU. A page of one head is contiguous there, [C, P, D]; on the device a token is, [C, kv_heads, D].
Of several ranks that share the pool, each stores the pages p with p % RANKS == RANK, at p // RANKS.
"""

import triton
import triton.language as tl


@triton.jit
def swap_in(
    host_kv, exchange, buffer, swaps, swap_counts, pairs, width, exchange_width,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    PAGES: tl.constexpr, PAIRS: tl.constexpr, RANKS: tl.constexpr, RANK: tl.constexpr,
    FROM_HOST: tl.constexpr, TO_BUFFER: tl.constexpr,
):  # fmt: skip
    """Copy listed pages of single heads from the host. Grid: any number of programs.

    The programs share all lists, PAGES of one list at a time. A few saturate the bus; more would only keep
    multiprocessors from other kernels.

    Ranks that share the pool copy in two launches: what they store to exchange, with 0 for what others store;
    then, when these have been merged, from there to the buffer.

    In: host_kv [stored pages, kv_heads, C, P, D], one layer's; swaps int32 [R, kv_heads, width, 2], pairs (host
    page, device page) from `select_pages`; swap_counts int32 [R, kv_heads]; pairs = R * kv_heads, at most PAIRS.
    In without FROM_HOST, out without TO_BUFFER: exchange [pairs, exchange_width, C, P, D], as the lists.
    Out: buffer [device slots, C, kv_heads, D], one layer's.
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
        mask = there[:, None] & (d < HEAD_DIM)
        between = ((mine.to(tl.int64) * exchange_width + swap) * LINES + line % LINES)[:, None] * HEAD_DIM + d
        if FROM_HOST:
            here = mask
            if RANKS > 1:
                here = mask & (source % RANKS == RANK)[:, None]
            at = ((source // RANKS * KV_HEADS + head) * LINES + line % LINES)[:, None] * HEAD_DIM + d
            # .cg: the host pool changes between steps, which an L1 cache would not see.
            value = tl.load(host_kv + at, mask=here, other=0.0, cache_modifier=".cg")
        else:
            value = tl.load(exchange + between, mask=mask, other=0.0)
        if TO_BUFFER:
            to = (((target * PAGE + offset) * PARTS + part) * KV_HEADS + head)[:, None] * HEAD_DIM + d
            tl.store(buffer + to, value, mask=mask)
        else:
            tl.store(exchange + between, value, mask=mask)


@triton.jit
def offload_rows(
    buffer, dense_kv, host_kv, layer_index, buffer_slots, host_slots, buffer_stride, dense_stride, host_stride,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    LINES: tl.constexpr, RANKS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Copy one new token per row, in the host's layers, to the host. Grid: (R, L).

    In: buffer [Ls, device slots, C, kv_heads, D]; dense_kv [Ld, host slots, C, kv_heads, D]; layer_index int32
    [L], a sparse layer's position in buffer, or -1 - a dense layer's position in dense_kv; buffer_slots,
    host_slots int32 [R], the latter -1 for no token.
    Out: host_kv [L, stored pages, kv_heads, C, P, D].
    """
    row = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    host_slot = tl.load(host_slots + row).to(tl.int64)
    if host_slot < 0:
        return
    if host_slot // PAGE % RANKS != RANK:
        return
    buffer_slot = tl.load(buffer_slots + row).to(tl.int64)
    index = tl.load(layer_index + layer).to(tl.int64)
    line = tl.arange(0, LINES)
    d = tl.arange(0, PADDED)[None, :]
    mask = (line < PARTS * KV_HEADS)[:, None] & (d < HEAD_DIM)
    if index >= 0:
        at = buffer + index * buffer_stride + buffer_slot * (PARTS * KV_HEADS * HEAD_DIM)
    else:
        at = dense_kv + (-1 - index) * dense_stride + host_slot * (PARTS * KV_HEADS * HEAD_DIM)
    value = tl.load(at + line[:, None] * HEAD_DIM + d, mask=mask, other=0.0)
    part, head = line // KV_HEADS, line % KV_HEADS
    page = (host_slot // (PAGE * RANKS) * KV_HEADS + head) * PARTS + part
    to = host_kv + layer * host_stride + (page * PAGE + host_slot % PAGE)[:, None] * HEAD_DIM + d
    tl.store(to, value, mask=mask)


@triton.jit
def copy_pages(
    pool, slots, host_kv, host_pages, tokens, units, pool_stride, host_stride,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    PAGES: tl.constexpr, TO_HOST: tl.constexpr, RANKS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Copy a sequence between a pool of tokens and the host. Grid: any number of programs, few; see `swap_in`.

    Pages that other ranks store are not copied to the host, and come from there as 0. A unit of work is PAGES
    pages of one head and layer.

    pool [Lh, slots, C, kv_heads, D] is the staging pool; host_kv [Lh, stored pages, kv_heads, C, P, D]; slots
    int32 [tokens]; host_pages int32 [pages], that of token t at t // P.
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
        mask = there[:, None] & (d < HEAD_DIM)
        slot = tl.load(slots + token, mask=there, other=0).to(tl.int64)
        here = pool + layer * pool_stride + ((slot * PARTS + part) * KV_HEADS + head)[:, None] * HEAD_DIM + d
        host_page = tl.load(host_pages + page, mask=there, other=0).to(tl.int64)
        stored = mask
        if RANKS > 1:
            stored = mask & (host_page % RANKS == RANK)[:, None]
        run = (host_page // RANKS * KV_HEADS + head) * LINES
        there_at = host_kv + layer * host_stride + (run + line % LINES)[:, None] * HEAD_DIM + d
        if TO_HOST:
            tl.store(there_at, tl.load(here, mask=stored, other=0.0), mask=stored)
        else:
            tl.store(here, tl.load(there_at, mask=stored, other=0.0, cache_modifier=".cg"), mask=mask)


@triton.jit
def copy_rows(
    source, target, from_slots, to_slots, layers, source_stride, target_stride,
    FROM_ROW: tl.constexpr, TO_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set target[i, to_slots] = source[layers[i], from_slots], the first TO_ROW elements. Grid: (n, layers).

    In: source [L, slots, FROM_ROW elements]; from_slots, to_slots int32 [n]; layers int32 [grid's layers].
    Out: target [len(layers), slots, TO_ROW elements].
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
