"""Attention of a prefill's rows to latents that a list names, gathered block by block.

All heads of a row read the same latents, so they are rows of one tile. A row's bits depend on its own list alone:
not on other rows, nor on where its latents are.
"""

import triton
import triton.language as tl


@triton.jit
def attend_lists(
    q, pool, lists, begins, counts, out, scale, q_stride,
    HEADS: tl.constexpr, VALUE: tl.constexpr, TAIL: tl.constexpr,
    PADDED_VALUE: tl.constexpr, PADDED_TAIL: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Set out = softmax(q latents^T scale) values, by an online softmax. Grid: (T * blocks of M heads,).

    In:
        q: [T, heads, VALUE + TAIL].
        pool: [slots, VALUE + TAIL]; the first VALUE channels of a latent are its value.
        lists: int32: pool slots; a row's list begins at `begins`, int64 [T].
        counts: int32 [T]: the length of a row's list, at least 1.
    Out: out [T, heads, VALUE].
    """
    BLOCKS: tl.constexpr = (HEADS + M - 1) // M
    LOG2E: tl.constexpr = 1.4426950408889634
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    lists += tl.load(begins + row)
    count = tl.load(counts + row)
    heads = tl.program_id(0) % BLOCKS * M + tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, PADDED_VALUE)
    t = tl.arange(0, PADDED_TAIL)
    mine = (heads < HEADS)[:, None]
    in_value, in_tail = (d < VALUE)[None, :], (t < TAIL)[None, :]
    q_at = q + row * q_stride + heads[:, None] * (VALUE + TAIL)
    query = tl.load(q_at + d[None, :], mask=mine & in_value, other=0.0)
    query_tail = tl.load(q_at + VALUE + t[None, :], mask=mine & in_tail, other=0.0)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, PADDED_VALUE], tl.float32)
    for block in range(0, count, N):
        there = block + n < count
        slot = tl.load(lists + block + n, mask=there, other=0).to(tl.int64)
        at = pool + slot[:, None] * (VALUE + TAIL)
        values = tl.load(at + d[None, :], mask=there[:, None] & in_value, other=0.0)
        tails = tl.load(at + VALUE + t[None, :], mask=there[:, None] & in_tail, other=0.0)
        logits = tl.dot(query, tl.trans(values), input_precision=PRECISION)
        logits += tl.dot(query_tail, tl.trans(tails), input_precision=PRECISION)
        logits = tl.where(there[None, :], logits * (scale * LOG2E), float("-inf"))
        # Every block has a token, so the maximum is finite.
        new_top = tl.maximum(top, tl.max(logits, axis=1))
        shares = tl.exp2(logits - new_top[:, None])
        keep = tl.exp2(top - new_top)
        total = total * keep + tl.sum(shares, axis=1)
        acc = acc * keep[:, None] + tl.dot(shares.to(values.dtype), values, input_precision=PRECISION)
        top = new_top
    to = out + (row * HEADS + heads[:, None]) * VALUE + d[None, :]
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=mine & in_value)
