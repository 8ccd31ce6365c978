"""Attention over packed segments: one persistent kernel, without padding and without a mask in memory.

A tile is a run of consecutive rows of one group, whatever segments they belong to: all of them see the same
context, which is read once for the whole tile, so short items fill a tile as well as long ones do. Behind the
context stand the tile's own segments; there a row sees the columns from its segment's first row to itself. Heads
that share a key head are rows of the same tile.

The number of tiles is read from memory, so a launch captured in a CUDA graph serves every batch.
"""

import triton
import triton.language as tl


@triton.jit
def packed_attention(
    qkv,
    pool,
    out,
    positions,
    segment_starts,
    tiles,
    tile_count,
    context_slots,
    scale,
    soft_cap,
    pool_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    FIELDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """qkv [T, (heads + 2 kv_heads) head_dim], pool [slots, 2, kv_heads, head_dim] -> out [T, heads head_dim].

    positions, segment_starts: int32 [T]; tiles: int32 [tile_count, FIELDS]; context_slots: int32. WINDOW 0: none.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    TILE_ROWS: tl.constexpr = M // GROUP
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    LOG2E: tl.constexpr = 1.4426950408889634
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, PADDED_DIM)
    in_dim = d < HEAD_DIM
    count = tl.load(tile_count)
    for work in range(tl.program_id(0), count * KV_HEADS, tl.num_programs(0)):
        kv_head = work % KV_HEADS
        tile = tiles + (work // KV_HEADS) * FIELDS
        first, last = tl.load(tile), tl.load(tile + 1)
        slot_begin, slot_end = tl.load(tile + 2), tl.load(tile + 3)
        context_begin, context_end = tl.load(tile + 4), tl.load(tile + 5)

        row = first + m // GROUP
        valid = (row < last) & (m < TILE_ROWS * GROUP)
        head = kv_head * GROUP + m % GROUP
        q_offsets = row.to(tl.int64) * ROW + head * HEAD_DIM
        q = tl.load(qkv + q_offsets[:, None] + d, mask=valid[:, None] & in_dim, other=0.0)
        start = tl.load(segment_starts + row, mask=valid, other=0)
        position = tl.load(positions + row, mask=valid, other=2147483647)
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, PADDED_DIM], tl.float32)

        # The context that stands in the pool: positions 0, 1, 2, ...
        in_pool = slot_end - slot_begin
        hidden_before = 0
        if WINDOW:
            hidden_before = tl.maximum(tl.min(position) - WINDOW + 1, 0)
        for begin in range(tl.minimum(hidden_before, in_pool) // N * N, in_pool, N):
            column = begin + n
            there = column < in_pool
            slot = tl.load(context_slots + slot_begin + column, mask=there, other=0).to(tl.int64)
            offsets = slot * pool_stride + kv_head * HEAD_DIM
            kv_mask = there[:, None] & in_dim
            k = tl.load(pool + offsets[:, None] + d, mask=kv_mask, other=0.0)
            v = tl.load(pool + KV_HEADS * HEAD_DIM + offsets[:, None] + d, mask=kv_mask, other=0.0)
            seen = there[None, :]
            if WINDOW:
                seen = seen & (position[:, None] - column[None, :] < WINDOW)
            acc, top, total = _attend(
                acc, top, total, q, k, v, seen, scale, soft_cap, CAPPED, LOG2E, PRECISION
            )

        # Then what is new: the rest of the context, and after it the rows of the tile's own segments.
        own_begin = tl.load(segment_starts + first)
        if WINDOW:
            own_begin = tl.maximum(own_begin, first - WINDOW + 1)
        context = context_end - context_begin
        columns = context + tl.minimum(first + TILE_ROWS, last) - own_begin
        hidden_before = tl.minimum(tl.maximum(hidden_before - in_pool, 0), context)
        for begin in range(hidden_before // N * N, columns, N):
            column = begin + n
            of_context = column < context
            kv_row = tl.where(of_context, context_begin + column, own_begin + column - context)
            there = column < columns
            offsets = kv_row.to(tl.int64) * ROW + (HEADS + kv_head) * HEAD_DIM
            kv_mask = there[:, None] & in_dim
            k = tl.load(qkv + offsets[:, None] + d, mask=kv_mask, other=0.0)
            v = tl.load(qkv + KV_HEADS * HEAD_DIM + offsets[:, None] + d, mask=kv_mask, other=0.0)
            own = (kv_row[None, :] >= start[:, None]) & (kv_row[None, :] <= row[:, None])
            if WINDOW:
                near = position[:, None] - (in_pool + column)[None, :] < WINDOW
                own = own & (row[:, None] - kv_row[None, :] < WINDOW)
                seen = tl.where(of_context[None, :], near, own & there[None, :])
            else:
                seen = of_context[None, :] | (own & there[None, :])
            acc, top, total = _attend(
                acc, top, total, q, k, v, seen, scale, soft_cap, CAPPED, LOG2E, PRECISION
            )

        o_offsets = row.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM
        result = acc / total[:, None]
        tl.store(out + o_offsets[:, None] + d, result.to(out.dtype.element_ty), mask=valid[:, None] & in_dim)


@triton.jit
def _attend(
    acc, top, total, q, k, v, seen, scale, soft_cap,
    CAPPED: tl.constexpr, LOG2E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax, in powers of two."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if CAPPED:
        logits = soft_cap * (2 * tl.sigmoid(2 * logits / soft_cap) - 1)
    logits = tl.where(seen, logits * LOG2E, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, axis=1))
    # A row that has seen nothing yet has no maximum to subtract.
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(logits - shift[:, None])
    keep = tl.exp2(top - shift)
    total = total * keep + tl.sum(weights, axis=1)
    acc = acc * keep[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return acc, new_top, total
