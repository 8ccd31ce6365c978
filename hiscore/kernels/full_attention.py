"""Attention of a prefill's rows to all earlier tokens of their sequences, with keys and values of each head.

A key has two parts: one of its head, and a tail that all heads share. A row's bits depend on its own sequence
alone: blocks of keys begin where the sequence begins.
"""

import triton
import triton.language as tl


@triton.jit
def attend_full(
    q, tails_of_q, keys, tails, values, tiles, out, scale,
    q_stride, q_head_stride, tail_q_stride, tail_q_head_stride, key_stride, key_head_stride, tail_stride,
    value_stride, value_head_stride, out_stride, out_head_stride,
    KEY: tl.constexpr, TAIL: tl.constexpr, VALUE: tl.constexpr,
    PADDED_KEY: tl.constexpr, PADDED_TAIL: tl.constexpr, PADDED_VALUE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, FIELDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Set out = softmax(q keys^T scale) values, by an online softmax. Grid: (tiles, heads).

    All tensors go by strides; last dimensions are dense. The K tokens of the sequences are one behind another.

    In: q [T, heads, KEY]; tails_of_q [T, heads, TAIL]; keys [K, heads, KEY]; tails [K, TAIL]; values [K, heads,
    VALUE]; tiles int32 [tiles, FIELDS]: the first row, the number of rows (at most M), the first one's position,
    and the first key of its sequence.
    Out: out [T, heads, VALUE].
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    tile = tiles + tl.program_id(0) * FIELDS
    head = tl.program_id(1).to(tl.int64)
    first, rows, position = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    begin = tl.load(tile + 3).to(tl.int64)
    m, n = tl.arange(0, M), tl.arange(0, N)
    d, t, v = tl.arange(0, PADDED_KEY), tl.arange(0, PADDED_TAIL), tl.arange(0, PADDED_VALUE)
    row, mine = (first + m).to(tl.int64)[:, None], (m < rows)[:, None]
    query = tl.load(
        q + row * q_stride + head * q_head_stride + d[None, :], mask=mine & (d < KEY)[None, :], other=0.0
    )
    query_tail = tl.load(
        tails_of_q + row * tail_q_stride + head * tail_q_head_stride + t[None, :],
        mask=mine & (t < TAIL)[None, :], other=0.0,
    )  # fmt: skip
    count = position + rows
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, PADDED_VALUE], tl.float32)
    for block in range(0, count, N):
        token = block + n
        there = (token < count)[:, None]
        at = begin + token.to(tl.int64)[:, None]
        key = tl.load(
            keys + at * key_stride + head * key_head_stride + d[None, :],
            mask=there & (d < KEY)[None, :],
            other=0.0,
        )
        tail = tl.load(tails + at * tail_stride + t[None, :], mask=there & (t < TAIL)[None, :], other=0.0)
        logits = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        logits += tl.dot(query_tail, tl.trans(tail), input_precision=PRECISION)
        seen = token[None, :] <= position + m[:, None]
        logits = tl.where(seen, logits * (scale * LOG2E), float("-inf"))
        # Every row sees the first token, so the maximum is finite from the first block on.
        new_top = tl.maximum(top, tl.max(logits, axis=1))
        shares = tl.exp2(logits - new_top[:, None])
        keep = tl.exp2(top - new_top)
        total = total * keep + tl.sum(shares, axis=1)
        value = tl.load(
            values + at * value_stride + head * value_head_stride + v[None, :],
            mask=there & (v < VALUE)[None, :], other=0.0,
        )  # fmt: skip
        acc = acc * keep[:, None] + tl.dot(shares.to(value.dtype), value, input_precision=PRECISION)
        top = new_top
    to = out + row * out_stride + head * out_head_stride + v[None, :]
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=mine & (v < VALUE)[None, :])
