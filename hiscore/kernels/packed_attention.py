"""Attention over packed segments: one persistent kernel, without padding and without a mask in memory.

A tile is a run of consecutive rows of one group, of any segments. All of them see the same context, which is read
once for the tile, so short items fill a tile as well as long ones. Then come the tile's own segments, short ones
several at once, where a row sees the rows of its segment up to itself. Query heads that share a key head are rows
of the same tile. The number of tiles is read from memory, so a launch captured in a CUDA graph serves every batch.
"""

import triton
import triton.language as tl


@triton.jit
def packed_attention(
    qkv, pool, out, positions, segment_starts, tiles, columns, tile_count, context_slots, sinks, scale,
    soft_cap, pool_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    TILE_FIELDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend for all tiles. Grid: any.

    In: qkv [T, (heads + 2 kv_heads) head_dim]; pool [slots, 2, kv_heads, head_dim]; segment_starts, tiles, columns
    as from `attention_tiles`; tile_count int32 [1]; context_slots int32 [N].
    Out: out [T, heads head_dim]. WINDOW: Tokens that a row sees; 0: all.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    TILE_ROWS: tl.constexpr = M // GROUP
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, PADDED_DIM)
    in_dim = d < HEAD_DIM
    count = tl.load(tile_count)
    for work in range(tl.program_id(0), count * KV_HEADS, tl.num_programs(0)):
        kv_head = work % KV_HEADS
        tile = tiles + (work // KV_HEADS) * TILE_FIELDS
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
        if SINKS:
            top = tl.load(sinks + head) * 1.4426950408889634
            total += 1
        acc = tl.zeros([M, PADDED_DIM], tl.float32)

        # The context in the pool: positions 0, 1, 2, ... Blocks of N start anew where the segment's own beginning
        # does: the same blocks, in the same order, as when the whole item is new.
        in_pool = slot_end - slot_begin
        shared = in_pool - tl.load(tile + 6)
        shared_blocks = tl.cdiv(shared, N)
        hidden_before = 0
        first_block = 0
        if WINDOW:
            hidden_before = tl.maximum(tl.min(position) - WINDOW + 1, 0)
            first_block = tl.minimum(hidden_before, shared) // N
            if hidden_before > shared:
                first_block = shared_blocks + (tl.minimum(hidden_before, in_pool) - shared) // N
        for block in range(first_block, shared_blocks + tl.cdiv(in_pool - shared, N)):
            in_own = block >= shared_blocks
            column = tl.where(in_own, shared + (block - shared_blocks) * N, block * N) + n
            there = column < tl.where(in_own, in_pool, shared)
            if WINDOW:
                # What no row sees may hold anything by now.
                there = there & (column >= hidden_before)
            slot = tl.load(context_slots + slot_begin + column, mask=there, other=0).to(tl.int64)
            at = pool + slot * pool_stride + kv_head * HEAD_DIM
            seen = there[None, :]
            if WINDOW:
                seen = seen & (position[:, None] - column[None, :] < WINDOW)
            acc, top, total = _attend(
                acc, top, total, q, at, KV_HEADS * HEAD_DIM, there, seen, scale, soft_cap,
                HEAD_DIM, PADDED_DIM, CAPPED, PRECISION,
            )  # fmt: skip

        # The rest of the context is new in this forward; its positions follow.
        new_kv = qkv + (HEADS + kv_head) * HEAD_DIM
        context = context_end - context_begin
        hidden_before = tl.minimum(tl.maximum(hidden_before - in_pool, 0), context)
        for begin in range(hidden_before // N * N, context, N):
            column = begin + n
            there = column < context
            at = new_kv + (context_begin + column).to(tl.int64) * ROW
            seen = there[None, :]
            if WINDOW:
                seen = seen & (position[:, None] - (in_pool + column)[None, :] < WINDOW)
            acc, top, total = _attend(
                acc, top, total, q, at, KV_HEADS * HEAD_DIM, there, seen, scale, soft_cap,
                HEAD_DIM, PADDED_DIM, CAPPED, PRECISION,
            )  # fmt: skip

        # The keys of a segment with more of them than the tile has rows, in blocks that start where it starts.
        long_start, long_end = tl.load(tile + 7), tl.load(tile + 8)
        long_begin = long_start
        if WINDOW:
            long_begin += tl.maximum(first - WINDOW + 1 - long_start, 0) // N * N
        for begin in range(long_begin, long_end, N):
            column = begin + n
            there = column < long_end
            at = new_kv + column.to(tl.int64) * ROW
            # The second comparison also excludes columns beyond the segment's last row in this tile.
            seen = (start == long_start)[:, None] & (column[None, :] <= row[:, None])
            if WINDOW:
                seen = seen & (row[:, None] - column[None, :] < WINDOW)
            acc, top, total = _attend(
                acc, top, total, q, at, KV_HEADS * HEAD_DIM, there, seen, scale, soft_cap,
                HEAD_DIM, PADDED_DIM, CAPPED, PRECISION,
            )  # fmt: skip

        # The keys of the tile's other segments, each in its slot: see `attention_tiles`.
        columns_end = tl.load(tile + 10)
        for begin in range(tl.load(tile + 9), columns_end, N):
            column = tl.load(columns + begin + n, mask=begin + n < columns_end, other=-1)
            there = column >= 0
            at = new_kv + column.to(tl.int64) * ROW
            seen = (column[None, :] >= start[:, None]) & (column[None, :] <= row[:, None])
            if WINDOW:
                seen = seen & (row[:, None] - column[None, :] < WINDOW)
            acc, top, total = _attend(
                acc, top, total, q, at, KV_HEADS * HEAD_DIM, there, seen, scale, soft_cap,
                HEAD_DIM, PADDED_DIM, CAPPED, PRECISION,
            )  # fmt: skip

        o_offsets = row.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM
        result = acc / total[:, None]
        tl.store(out + o_offsets[:, None] + d, result.to(out.dtype.element_ty), mask=valid[:, None] & in_dim)


@triton.jit
def _attend(
    acc, top, total, q, at, to_values, there, seen, scale, soft_cap,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax, in powers of two: keys at `at`, values `to_values` further on."""
    LOG2E: tl.constexpr = 1.4426950408889634
    d = tl.arange(0, PADDED_DIM)
    mask = there[:, None]
    if PADDED_DIM != HEAD_DIM:
        mask = mask & (d < HEAD_DIM)
    k = tl.load(at[:, None] + d, mask=mask, other=0.0)
    v = tl.load(at[:, None] + to_values + d, mask=mask, other=0.0)
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if CAPPED:
        logits = (soft_cap * LOG2E) * (2 * tl.sigmoid(logits * (2 * scale / soft_cap)) - 1)
    else:
        logits = logits * (scale * LOG2E)
    logits = tl.where(seen, logits, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, axis=1))
    # A row that has seen nothing yet has no maximum.
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(logits - shift[:, None])
    keep = tl.exp2(top - shift)
    total = total * keep + tl.sum(weights, axis=1)
    acc = acc * keep[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return acc, new_top, total
