"""What a selector reads and writes on the device: the index of keys, and scores of pages by it.

A page's bounds are the least and the greatest of its keys, value by value. No key in the page scores higher than
`sum_d max(q_d min_d, q_d max_d)`, which two matrix products give: the positive part of q meets the greatest
values, the negative part the least.
"""

import triton
import triton.language as tl


@triton.jit
def page_scores(
    q, index, scores, slots, positions, host_block_table,
    scale, q_stride, table_stride, max_pages,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    BOUNDS: tl.constexpr, PAGE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score the pages of a stream for each query head: q [R, heads, D] -> scores float32 [R, heads, max_pages].

    index: under BOUNDS [host pages, kv_heads, 2, D], otherwise keys [host pages, kv_heads, D]. host_block_table:
    int32 [streams, max_pages]. A grid of (R, kv_heads, blocks of N pages).
    Nothing is written beyond a row's length.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    slot = tl.load(slots + row)
    pages = tl.load(positions + row) // PAGE + 1
    first = tl.program_id(2) * N
    if (slot < 0) | (first >= pages):
        return
    n = first + tl.arange(0, N)
    m = tl.arange(0, M)
    d = tl.arange(0, PADDED)
    there = n < pages
    in_width = d[None, :] < WIDTH
    heads = kv_head * GROUP + m
    mine = (m < GROUP)[:, None]
    values = tl.load(
        q + row.to(tl.int64) * q_stride + heads[:, None] * WIDTH + d[None, :], mask=mine & in_width, other=0.0
    )
    host = tl.load(host_block_table + slot.to(tl.int64) * table_stride + n, mask=there, other=0).to(tl.int64)
    mask = there[:, None] & in_width
    if BOUNDS:
        at = index + ((host * KV_HEADS + kv_head) * 2 * WIDTH)[:, None] + d[None, :]
        least = tl.load(at, mask=mask, other=0.0)
        greatest = tl.load(at + WIDTH, mask=mask, other=0.0)
        result = tl.dot(
            tl.maximum(values, 0.0).to(q.dtype.element_ty), tl.trans(greatest), input_precision=PRECISION
        )
        result += tl.dot(
            tl.minimum(values, 0.0).to(q.dtype.element_ty), tl.trans(least), input_precision=PRECISION
        )
    else:
        at = index + ((host * KV_HEADS + kv_head) * WIDTH)[:, None] + d[None, :]
        keys = tl.load(at, mask=mask, other=0.0)
        result = tl.dot(values, tl.trans(keys), input_precision=PRECISION)
    to = scores + (row.to(tl.int64) * HEADS + heads)[:, None] * max_pages + n[None, :]
    tl.store(to, result * scale, mask=mine & there[None, :])


@triton.jit
def indexer_scores(
    q, gates, index, scores, slots, positions, host_block_table,
    q_stride, gates_stride, table_stride, max_pages,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A checkpoint's own indexer, by tokens: scores [R, max_pages] = sum over heads of gate * relu(q . key).

    q [R, heads, D], gates float32 [R, heads], index [host pages, D]. A grid of (R, blocks of N pages).
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    pages = tl.load(positions + row) + 1
    first = tl.program_id(1) * N
    if (slot < 0) | (first >= pages):
        return
    n = first + tl.arange(0, N)
    m = tl.arange(0, M)
    d = tl.arange(0, PADDED)
    there = n < pages
    in_width = d[None, :] < WIDTH
    mine = m < HEADS
    host = tl.load(host_block_table + slot.to(tl.int64) * table_stride + n, mask=there, other=0).to(tl.int64)
    keys = tl.load(index + host[:, None] * WIDTH + d[None, :], mask=there[:, None] & in_width, other=0.0)
    values = tl.load(
        q + row.to(tl.int64) * q_stride + m[:, None] * WIDTH + d[None, :],
        mask=mine[:, None] & in_width,
        other=0.0,
    )
    gate = tl.load(gates + row.to(tl.int64) * gates_stride + m, mask=mine, other=0.0)
    products = tl.dot(values, tl.trans(keys), input_precision=PRECISION)
    result = tl.sum(tl.maximum(products, 0.0) * gate[:, None], axis=0)
    tl.store(scores + row.to(tl.int64) * max_pages + n, result, mask=there)


@triton.jit
def write_index(
    keys, index, host_slots, keys_stride,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BOUNDS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Take one new token of each stream into the index: keys [R, kv_heads, D], host_slots int32 [R], -1 for none.

    A page's first token starts its bounds afresh. A grid of (R, kv_heads).
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(host_slots + row).to(tl.int64)
    if slot < 0:
        return
    d = tl.arange(0, PADDED)
    inside = d < WIDTH
    key = tl.load(keys + row.to(tl.int64) * keys_stride + head * WIDTH + d, mask=inside, other=0.0)
    if BOUNDS:
        at = index + ((slot // PAGE) * KV_HEADS + head) * 2 * WIDTH + d
        old = d < tl.where(slot % PAGE > 0, WIDTH, 0)
        tl.store(at, tl.minimum(key, tl.load(at, mask=old, other=float("inf"))), mask=inside)
        tl.store(at + WIDTH, tl.maximum(key, tl.load(at + WIDTH, mask=old, other=float("-inf"))), mask=inside)
    else:
        tl.store(index + (slot * KV_HEADS + head) * WIDTH + d, key, mask=inside)


@triton.jit
def bound_pages(
    pool, from_slots, host_pages, index, layers, tokens, pool_stride, index_stride,
    ROW: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Bounds of a prompt's pages: its keys stand at from_slots int32 [tokens] of pool [L, slots, C, kv_heads, D].

    Page i goes to host_pages[i] of index [Ls, host pages, kv_heads, 2, D], whose layer i is layers[i] of the pool.
    ROW: C kv_heads D. A grid of (pages, kv_heads, Ls).
    """
    page = tl.program_id(0)
    head = tl.program_id(1)
    layer = tl.program_id(2)
    t = page * PAGE + tl.arange(0, PAGE)
    d = tl.arange(0, PADDED)
    there = t < tokens
    inside = d < WIDTH
    slot = tl.load(from_slots + t, mask=there, other=0).to(tl.int64)
    pool += tl.load(layers + layer).to(tl.int64) * pool_stride
    keys = tl.load(
        pool + slot[:, None] * ROW + head * WIDTH + d[None, :],
        mask=there[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    least = tl.min(tl.where(there[:, None], keys, float("inf")), axis=0)
    greatest = tl.max(tl.where(there[:, None], keys, float("-inf")), axis=0)
    at = index + layer.to(tl.int64) * index_stride
    at += (tl.load(host_pages + page).to(tl.int64) * KV_HEADS + head) * 2 * WIDTH + d
    tl.store(at, least.to(index.dtype.element_ty), mask=inside)
    tl.store(at + WIDTH, greatest.to(index.dtype.element_ty), mask=inside)
