"""Selection by the lightning indexer for the rows of a prefill, without a score for each head in memory.

One kernel scores blocks of keys for tiles of rows, summed over the index heads, as keys of `top_k`. Another
selects each row's best. A score is the same sum whatever tile its row is in, so chunks of any size select alike.
"""

import triton
import triton.language as tl

from hiscore.kernels.top_k import ALWAYS, float_key, kth_largest, select


@triton.jit
def score_tiles(
    q, gates, index, slots, tiles, scores, q_stride, gates_stride, width,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    FIELDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Score tokens for tiles of rows: sum over heads of gate * relu(q . key). Grid: (tiles, blocks of N tokens).

    In: q [T, heads, D]; gates float32 [T, heads]; index [pool slots, D], index keys; slots int32, the pool slots
    of sequences, by position; tiles int64 [tiles, FIELDS]: first row; rows; tokens that the first row sees, each
    further row one more; the sequence's beginning in slots; the first row's place in scores.
    Out: scores uint32 [rows, width], see `top_k.float_key`; nothing is written beyond a tile's tokens.
    """
    tile = tiles + tl.program_id(0) * FIELDS
    first, rows, length = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    begin = tl.program_id(1) * N
    if begin >= length + rows - 1:
        return
    slots += tl.load(tile + 3)
    scores += tl.load(tile + 4) * width
    n = begin + tl.arange(0, N)
    m = tl.arange(0, M)
    d = tl.arange(0, PADDED)
    there = n < length + rows - 1
    in_width = d[None, :] < HEAD_DIM
    mine = m < HEADS
    slot = tl.load(slots + n, mask=there, other=0).to(tl.int64)
    keys = tl.load(index + slot[:, None] * HEAD_DIM + d[None, :], mask=there[:, None] & in_width, other=0.0)
    for row in range(first, first + rows):
        values = tl.load(
            q + row * q_stride + m[:, None] * HEAD_DIM + d[None, :], mask=mine[:, None] & in_width, other=0.0
        )
        gate = tl.load(gates + row * gates_stride + m, mask=mine, other=0.0)
        products = tl.dot(values, tl.trans(keys), input_precision=PRECISION)
        result = tl.sum(tl.maximum(products, 0.0) * gate[:, None], axis=0)
        tl.store(scores + (row - first) * width + n, float_key(result), mask=there)


@triton.jit
def select_slots(scores, slots, begins, lengths, lists, width, top_k, BLOCK: tl.constexpr):
    """Select the top_k best tokens of each row, of equal ones the lower position. Grid: (rows,).

    In: scores, slots as in `score_tiles`; begins int64 [rows], where a row's sequence begins in slots; lengths
    int32 [rows], tokens that a row sees, more than top_k.
    Out: lists int32 [rows, top_k]: pool slots, in the order of positions.
    """
    row = tl.program_id(0).to(tl.int64)
    scores += row * width
    slots += tl.load(begins + row)
    lists += row * top_k
    count = tl.load(lengths + row)
    low, allowed = kth_largest(scores, count, top_k, ALWAYS, BLOCK)
    ties = count * 0
    taken = count * 0
    for begin in range(0, count, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        there = position < count
        key = tl.load(scores + position, mask=there, other=0)
        selected, rank, ties, taken = select(key, there, low, allowed, ties, taken)
        tl.store(lists + rank, tl.load(slots + position, mask=selected, other=0), mask=selected)
