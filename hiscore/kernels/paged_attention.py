"""Paged attention of single rows, split along the tokens so that one row fills the device (flash decoding).

A split is a fixed number of listed tokens, and splits are combined in ascending order. So a row's bits depend on
the tokens that it sees alone: not on other rows, on where pages are, or on the size of the grid. Query heads that
share a KV head are rows of one tile, for which keys and values are read once.

Splits all of whose pages are on the device need not wait for pages on their way there: they are computed in a
launch of their own.
"""

import triton
import triton.language as tl

from hiscore.kernels.gemv import launch_dependents, wait_for_predecessors

EVERY_SPLIT, PRESENT_SPLITS, PENDING_SPLITS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Part of the splits that a launch of `attend_splits` computes: a split is pending if one of its pages is."""


@triton.jit
def _prefetch_to_l2(
    rows, pages, begin, end,
    ROW: tl.constexpr, HEAD_DIM: tl.constexpr, SPLIT: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Prefetch rows [HEAD_DIM] of tokens [begin, begin + SPLIT) below end into the L2 cache, without waiting."""
    LINE: tl.constexpr = 128 // (rows.dtype.element_ty.primitive_bitwidth // 8)
    token = begin + tl.arange(0, SPLIT)
    there = token < end
    page = tl.load(pages + token // PAGE, mask=there, other=0).to(tl.int64)
    at = rows + (page * PAGE + token % PAGE) * ROW
    for line in tl.static_range(0, HEAD_DIM, LINE):
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r", [(at + line).to(tl.int64), there.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "pages_by_sequence",
        "pages_by_row",
        "pages_by_head",
        "counts_by_row",
        "counts_by_head",
    ]
)
def attend_splits(
    q, pool, pages, counts, seq_indices, positions, partial, stats,
    scale, soft_cap, q_stride, max_splits,
    pages_by_sequence, pages_by_row, pages_by_head, counts_by_row, counts_by_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PARTS: tl.constexpr,
    HEAD_DIM: tl.constexpr, VALUE: tl.constexpr, PADDED_VALUE: tl.constexpr,
    PADDED_TAIL: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr, AHEAD: tl.constexpr, WHICH: tl.constexpr,
):  # fmt: skip
    """Attend to one split of a row's list. Grid: (R * kv_heads * blocks of M heads, splits).

    With C = 1 the first VALUE channels of a key are its value and the rest its tail. A list's last page ends at
    the row's position. A row without pages, or padding, writes nothing.

    In: q [R, heads, D]; pool [slots, C, kv_heads, D]; pages int32, a list at seq_index * pages_by_sequence + row *
    pages_by_row + kv_head * pages_by_head, ~page for a pending one; counts int32, pages per list, at row *
    counts_by_row + kv_head * counts_by_head.
    Out: partial float32 [R, heads, max_splits, VALUE], weighted sums of values; stats float32 [R, heads,
    max_splits, 2], the greatest logit, in powers of 2, and the sum of weights.

    Args:
        WINDOW: Attend to this many of the last tokens; 0: to all. A list may name pages again that hold other
            tokens by now: nothing before the window is read.
        AHEAD: Lists are of everything up to the position, and no kernel of the chain writes them.
        WHICH: The splits to compute; with EVERY_SPLIT no page may be pending.
    """
    launch_dependents(CHAINED)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCKS: tl.constexpr = (GROUP + M - 1) // M
    LOG2E: tl.constexpr = 1.4426950408889634
    TAIL: tl.constexpr = HEAD_DIM - VALUE
    row = tl.program_id(0) // (KV_HEADS * BLOCKS)
    kv_head = tl.program_id(0) // BLOCKS % KV_HEADS
    seq_index = tl.load(seq_indices + row).to(tl.int64)
    row64 = row.to(tl.int64)
    position = tl.load(positions + row)
    if AHEAD and seq_index >= 0:
        ahead = tl.program_id(1) * SPLIT
        if WINDOW:
            ahead += tl.maximum(position + 1 - WINDOW, 0) // SPLIT * SPLIT
        for part in tl.static_range(PARTS):
            rows = pool + (part * KV_HEADS + kv_head) * HEAD_DIM
            listed = pages + seq_index * pages_by_sequence
            _prefetch_to_l2(rows, listed, ahead, position, PARTS * KV_HEADS * HEAD_DIM, HEAD_DIM, SPLIT, PAGE)
    wait_for_predecessors(CHAINED)
    if seq_index < 0:
        return
    tokens = position + 1
    if not AHEAD:
        count = tl.load(counts + row64 * counts_by_row + kv_head * counts_by_head)
        tokens = (count - 1) * PAGE + position % PAGE + 1
    first = 0
    if WINDOW:
        first = tl.maximum(tokens - WINDOW, 0)
    begin = (first // SPLIT + tl.program_id(1)) * SPLIT
    if begin >= tokens:
        return
    end = tl.minimum(begin + SPLIT, tokens)
    pages += seq_index * pages_by_sequence + row64 * pages_by_row + kv_head * pages_by_head
    if WHICH != EVERY_SPLIT:
        listed = begin // PAGE + tl.arange(0, SPLIT // PAGE)
        pending = tl.min(tl.load(pages + listed, mask=listed * PAGE < end, other=0), axis=0) < 0
        if pending != (WHICH == PENDING_SPLITS):
            return

    m = tl.program_id(0) % BLOCKS * M + tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, PADDED_VALUE)
    mine = (m < GROUP)[:, None]
    in_value = (d < VALUE)[None, :]
    heads = kv_head * GROUP + m
    q_at = q + row64 * q_stride + heads[:, None] * HEAD_DIM
    query = tl.load(q_at + d[None, :], mask=mine & in_value, other=0.0)
    if TAIL:
        t = tl.arange(0, PADDED_TAIL)
        in_tail = (t < TAIL)[None, :]
        query_tail = tl.load(q_at + VALUE + t[None, :], mask=mine & in_tail, other=0.0)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, PADDED_VALUE], tl.float32)
    # A window may begin within a split; its blocks begin where they would without one.
    start = begin
    if WINDOW:
        start = tl.maximum(begin, first // N * N)
    for block in range(start, end, N):
        column = block + n
        there = column < end
        seen = there
        if WINDOW:
            seen = there & (column >= first)
        page = tl.load(pages + column // PAGE, mask=there, other=0).to(tl.int64)
        if WHICH == PENDING_SPLITS:
            page = tl.where(page < 0, ~page, page)
        at = pool + ((page * PAGE + column % PAGE) * (PARTS * KV_HEADS) + kv_head)[:, None] * HEAD_DIM
        mask = seen[:, None]
        if PADDED_VALUE != VALUE:
            mask = mask & in_value
        k = tl.load(at + d[None, :], mask=mask, other=0.0)
        logits = tl.dot(query, tl.trans(k), input_precision=PRECISION)
        if TAIL:
            k_tail = tl.load(at + VALUE + t[None, :], mask=seen[:, None] & in_tail, other=0.0)
            logits += tl.dot(query_tail, tl.trans(k_tail), input_precision=PRECISION)
        v = k
        if PARTS == 2:
            v = tl.load(at + KV_HEADS * HEAD_DIM + d[None, :], mask=mask, other=0.0)
        if CAPPED:
            logits = (soft_cap * LOG2E) * (2 * tl.sigmoid(logits * (2 * scale / soft_cap)) - 1)
        else:
            logits = logits * (scale * LOG2E)
        logits = tl.where(seen[None, :], logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, axis=1))
        # Every block has a visible token, so the maximum is finite.
        shares = tl.exp2(logits - new_top[:, None])
        keep = tl.exp2(top - new_top)
        total = total * keep + tl.sum(shares, axis=1)
        acc = acc * keep[:, None] + tl.dot(shares.to(v.dtype), v, input_precision=PRECISION)
        top = new_top

    to = (row64 * HEADS + heads) * max_splits + tl.program_id(1)
    tl.store(partial + to[:, None] * VALUE + d[None, :], acc, mask=mine & in_value)
    tl.store(stats + 2 * to, top, mask=m < GROUP)
    tl.store(stats + 2 * to + 1, total, mask=m < GROUP)


@triton.jit(do_not_specialize=["counts_by_row", "counts_by_head"])
def combine_splits(
    partial, stats, counts, seq_indices, positions, sinks, out, max_splits, counts_by_row, counts_by_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, VALUE: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SPLIT: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, SINKS: tl.constexpr,
    CHAINED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Combine the results of `attend_splits`, SPLITS at a time. Grid: (R * heads, blocks of VALUE).

    In: partial, stats, counts as there. Out: out [R, heads, VALUE].
    """
    launch_dependents(CHAINED)
    row = tl.program_id(0) // HEADS
    kv_head = tl.program_id(0) % HEADS // (HEADS // KV_HEADS)
    seq_index = tl.load(seq_indices + row)
    position = tl.load(positions + row)
    wait_for_predecessors(CHAINED)
    if seq_index < 0:
        return
    tokens = position + 1
    if not AHEAD:
        count = tl.load(counts + row.to(tl.int64) * counts_by_row + kv_head * counts_by_head)
        tokens = tl.where(count > 0, (count - 1) * PAGE + position % PAGE + 1, 0)
    splits = tl.cdiv(tokens, SPLIT)
    if WINDOW:
        splits -= tl.maximum(tokens - WINDOW, 0) // SPLIT
    s = tl.arange(0, SPLITS)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < VALUE
    at = tl.program_id(0).to(tl.int64) * max_splits
    top = float("-inf")
    total = 0.0
    if SINKS:
        top = tl.load(sinks + tl.program_id(0) % HEADS) * 1.4426950408889634
        total = 1.0
    acc = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, splits, SPLITS):
        split = begin + s
        there = split < splits
        tops = tl.load(stats + 2 * (at + split), mask=there, other=float("-inf"))
        totals = tl.load(stats + 2 * (at + split) + 1, mask=there, other=0.0)
        values = tl.load(
            partial + (at + split)[:, None] * VALUE + d[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        weights = tl.exp2(tops - new_top)
        keep = tl.exp2(top - new_top)
        total = total * keep + tl.sum(weights * totals, axis=0)
        acc = acc * keep + tl.sum(weights[:, None] * values, axis=0)
        top = new_top
    if splits > 0:
        to = out + tl.program_id(0).to(tl.int64) * VALUE + d
        tl.store(to, (acc / total).to(out.dtype.element_ty), mask=inside)
