"""Attention in both directions over packed segments: one persistent kernel, without padding and without a mask.

A tile is a run of consecutive rows of any segments. Its segments are computed one after another, in blocks of keys
that start where the segment starts: so the order of a row's sums, and every bit of them, is independent of what
else is in the tile. The number of tiles is read from memory, so one CUDA graph serves every batch.

With relative positions (DeBERTa), logits gather two more products from tables that the caller has computed: of a
row's query with every relative position's key, and of a column's key with every relative position's query.
"""

import triton
import triton.language as tl


@triton.jit
def bidirectional_attention(
    qkv, out, segment_starts, segment_ends, tiles, tile_count, content_to_position, position_to_content,
    relative_rows, farthest, rows, scale,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, REACH: tl.constexpr,
    C2P: tl.constexpr, P2C: tl.constexpr, CAUSAL: tl.constexpr, POSITIONS: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend for all tiles. Grid: any.

    In: qkv [rows, 3 heads head_dim]; segment_starts, segment_ends int32 [rows]; tiles int32 [tiles, 2], see
    `attention.tiles`; tile_count int32 [1], the tiles to compute; content_to_position, position_to_content [heads,
    rows, POSITIONS]; relative_rows int32 [2 farthest + 1], each distance's relative position.
    Out: out [rows, heads head_dim]. REACH: Tokens that a row sees to either side; -1: all. CAUSAL:
    It sees no later ones.
    """
    ROW: tl.constexpr = 3 * HEADS * HEAD_DIM
    LOG2E: tl.constexpr = 1.4426950408889634
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, PADDED_DIM)
    in_dim = d < HEAD_DIM
    count = tl.load(tile_count)
    for work in range(tl.program_id(0), count * HEADS, tl.num_programs(0)):
        head = work % HEADS
        tile = tiles + (work // HEADS) * 2
        first, last = tl.load(tile), tl.load(tile + 1)
        row = first + m
        valid = row < last
        q_offsets = row.to(tl.int64) * ROW + head * HEAD_DIM
        q = tl.load(qkv + q_offsets[:, None] + d, mask=valid[:, None] & in_dim, other=0.0)
        start = tl.load(segment_starts + row, mask=valid, other=-1)
        table = head.to(tl.int64) * rows * POSITIONS
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, PADDED_DIM], tl.float32)

        own_row = first
        while own_row < last:
            segment = tl.load(segment_starts + own_row)
            segment_end = tl.load(segment_ends + own_row)
            begin, end = segment, segment_end
            if REACH >= 0:
                begin += tl.maximum(own_row - REACH - segment, 0) // N * N
                end = tl.minimum(tl.minimum(segment_end, last) + REACH, segment_end)
            if CAUSAL:
                end = tl.minimum(segment_end, last)
            for block in range(begin, end, N):
                column = block + n
                there = column < segment_end
                at = qkv + column.to(tl.int64) * ROW + (HEADS + head) * HEAD_DIM
                mask = there[:, None] & in_dim
                k = tl.load(at[:, None] + d, mask=mask, other=0.0)
                v = tl.load(at[:, None] + HEADS * HEAD_DIM + d, mask=mask, other=0.0)
                logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                seen = (start == segment)[:, None] & there[None, :]
                distance = row[:, None] - column[None, :]
                if C2P or P2C:
                    relative = tl.load(relative_rows + distance + farthest, mask=seen, other=0)
                if C2P:
                    by_row = table + row.to(tl.int64)[:, None] * POSITIONS + relative
                    logits += tl.load(content_to_position + by_row, mask=seen, other=0.0).to(tl.float32)
                if P2C:
                    by_column = table + column.to(tl.int64)[None, :] * POSITIONS + relative
                    logits += tl.load(position_to_content + by_column, mask=seen, other=0.0).to(tl.float32)
                if REACH >= 0:
                    seen = seen & (distance <= REACH) & (distance >= -REACH)
                if CAUSAL:
                    seen = seen & (distance >= 0)
                logits = tl.where(seen, logits * (scale * LOG2E), float("-inf"))
                new_top = tl.maximum(top, tl.max(logits, axis=1))
                # A row that has seen nothing yet has no maximum.
                shift = tl.where(new_top == float("-inf"), 0.0, new_top)
                weights = tl.exp2(logits - shift[:, None])
                keep = tl.exp2(top - shift)
                total = total * keep + tl.sum(weights, axis=1)
                acc = acc * keep[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
                top = new_top
            own_row = segment_end

        o_offsets = row.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM
        result = acc / total[:, None]
        tl.store(out + o_offsets[:, None] + d, result.to(out.dtype.element_ty), mask=valid[:, None] & in_dim)
