"""The index that a selector reads, and scores of pages by it.

A page's bounds are the least and greatest value of its keys in each channel. No key of the page scores higher than
`sum_d max(q_d min_d, q_d max_d)`, which two matrix products give: the positive part of q times the greatest
values, the negative part times the least.
"""

import triton
import triton.language as tl


@triton.jit
def page_scores(
    q, index, scores, seq_indices, positions, host_block_table,
    scale, q_stride, table_stride, max_pages,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    PAGE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score the pages of each row for each query head. Grid: (R, kv_heads, blocks of N pages).

    In: q [R, heads, D]; index [host pages, kv_heads, 2, D], least and greatest.
    Out: scores float32 [R, heads, max_pages]; nothing is written beyond a row's pages.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq_index = tl.load(seq_indices + row)
    pages = tl.load(positions + row) // PAGE + 1
    first = tl.program_id(2) * N
    if (seq_index < 0) | (first >= pages):
        return
    n = first + tl.arange(0, N)
    m = tl.arange(0, M)
    d = tl.arange(0, PADDED)
    there = n < pages
    in_width = d[None, :] < HEAD_DIM
    heads = kv_head * GROUP + m
    mine = (m < GROUP)[:, None]
    values = tl.load(
        q + row.to(tl.int64) * q_stride + heads[:, None] * HEAD_DIM + d[None, :],
        mask=mine & in_width,
        other=0.0,
    )
    host = tl.load(host_block_table + seq_index.to(tl.int64) * table_stride + n, mask=there, other=0).to(
        tl.int64
    )
    mask = there[:, None] & in_width
    at = index + ((host * KV_HEADS + kv_head) * 2 * HEAD_DIM)[:, None] + d[None, :]
    least = tl.load(at, mask=mask, other=0.0)
    greatest = tl.load(at + HEAD_DIM, mask=mask, other=0.0)
    result = tl.dot(
        tl.maximum(values, 0.0).to(q.dtype.element_ty), tl.trans(greatest), input_precision=PRECISION
    )
    result += tl.dot(
        tl.minimum(values, 0.0).to(q.dtype.element_ty), tl.trans(least), input_precision=PRECISION
    )
    to = scores + (row.to(tl.int64) * HEADS + heads)[:, None] * max_pages + n[None, :]
    tl.store(to, result * scale, mask=mine & there[None, :])


@triton.jit
def indexer_scores(
    q, gates, index, scores, seq_indices, positions, host_block_table,
    q_stride, gates_stride, table_stride, max_pages,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score tokens by a checkpoint's own indexer: sum over heads of gate * relu(q . key).

    Grid: (R, blocks of N tokens). In: q [R, heads, D], gates float32 [R, heads] and keys, index [host slots, D],
    of the indexer.
    Out: scores float32 [R, max_pages]; nothing is written beyond a row's tokens.
    """
    row = tl.program_id(0)
    seq_index = tl.load(seq_indices + row)
    pages = tl.load(positions + row) + 1
    first = tl.program_id(1) * N
    if (seq_index < 0) | (first >= pages):
        return
    n = first + tl.arange(0, N)
    m = tl.arange(0, M)
    d = tl.arange(0, PADDED)
    there = n < pages
    in_width = d[None, :] < HEAD_DIM
    mine = m < HEADS
    host = tl.load(host_block_table + seq_index.to(tl.int64) * table_stride + n, mask=there, other=0).to(
        tl.int64
    )
    keys = tl.load(index + host[:, None] * HEAD_DIM + d[None, :], mask=there[:, None] & in_width, other=0.0)
    values = tl.load(
        q + row.to(tl.int64) * q_stride + m[:, None] * HEAD_DIM + d[None, :],
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
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BOUNDS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Add one new token per row to the index; a page's first token starts its bounds afresh. Grid: (R, kv_heads).

    In: keys [R, kv_heads, D]; host_slots int32 [R], -1: no token.
    Out: index, BOUNDS: [host pages, kv_heads, 2, D], else an indexer's keys [host slots, 1, D].
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(host_slots + row).to(tl.int64)
    if slot < 0:
        return
    d = tl.arange(0, PADDED)
    inside = d < HEAD_DIM
    key = tl.load(keys + row.to(tl.int64) * keys_stride + head * HEAD_DIM + d, mask=inside, other=0.0)
    if BOUNDS:
        at = index + ((slot // PAGE) * KV_HEADS + head) * 2 * HEAD_DIM + d
        old = d < tl.where(slot % PAGE > 0, HEAD_DIM, 0)
        tl.store(at, tl.minimum(key, tl.load(at, mask=old, other=float("inf"))), mask=inside)
        tl.store(
            at + HEAD_DIM, tl.maximum(key, tl.load(at + HEAD_DIM, mask=old, other=float("-inf"))), mask=inside
        )
    else:
        tl.store(index + (slot * KV_HEADS + head) * HEAD_DIM + d, key, mask=inside)


@triton.jit
def bound_pages(
    pool, from_slots, host_pages, index, layers, tokens, pool_stride, index_stride,
    ROW: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Compute the bounds of a prompt's pages. Grid: (pages, kv_heads, Ls).

    In: pool [L, slots, C, kv_heads, D], where the prompt was prefilled (ROW = C * kv_heads * D); from_slots int32
    [tokens], its slots there; host_pages int32 [pages]; layers int32 [Ls], each sparse layer's in the pool.
    Out: index [Ls, host pages, kv_heads, 2, D].
    """
    page = tl.program_id(0)
    head = tl.program_id(1)
    layer = tl.program_id(2)
    t = page * PAGE + tl.arange(0, PAGE)
    d = tl.arange(0, PADDED)
    there = t < tokens
    inside = d < HEAD_DIM
    slot = tl.load(from_slots + t, mask=there, other=0).to(tl.int64)
    pool += tl.load(layers + layer).to(tl.int64) * pool_stride
    keys = tl.load(
        pool + slot[:, None] * ROW + head * HEAD_DIM + d[None, :],
        mask=there[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    least = tl.min(tl.where(there[:, None], keys, float("inf")), axis=0)
    greatest = tl.max(tl.where(there[:, None], keys, float("-inf")), axis=0)
    at = index + layer.to(tl.int64) * index_stride
    at += (tl.load(host_pages + page).to(tl.int64) * KV_HEADS + head) * 2 * HEAD_DIM + d
    tl.store(at, least.to(index.dtype.element_ty), mask=inside)
    tl.store(at + HEAD_DIM, greatest.to(index.dtype.element_ty), mask=inside)
