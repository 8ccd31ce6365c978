"""Mixture of experts without waiting for the host: pairs of a token and one of its experts, sorted by expert.

Every shape follows from the number of tokens alone, so that a CUDA graph may hold it all. A tile of pairs belongs
to one expert. No pair's result depends on other pairs: what shares its tile changes no sum and no order of sums.
"""

import triton
import triton.language as tl

SILU = tl.constexpr(1)
GELU = tl.constexpr(2)
CLAMPED_SWIGLU = tl.constexpr(3)


@triton.jit
def router_logits(
    h, router, bias, out, rows, inputs, experts,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Set out = h router^T + bias. Grid: (tiles of rows, tiles of experts).

    A library takes other sums for other numbers of rows, and a last bit may decide which expert is chosen.

    In: h [rows, inputs]; router float32 [experts, inputs]; bias float32 [experts].
    Out: out float32 [rows, experts].
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    expert = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    acc = tl.zeros([M, N], tl.float32)
    for begin in range(0, inputs, K):
        column = begin + k
        there = column < inputs
        part = tl.load(
            h + row.to(tl.int64)[:, None] * inputs + column, mask=(row < rows)[:, None] & there, other=0.0
        )
        weight = tl.load(
            router + expert[:, None] * inputs + column, mask=(expert < experts)[:, None] & there, other=0.0
        )
        acc = tl.dot(part.to(tl.float32), tl.trans(weight), acc, input_precision=PRECISION)
    if BIASED:
        acc += tl.load(bias + expert, mask=expert < experts, other=0.0)
    mask = (row < rows)[:, None] & (expert < experts)
    tl.store(out + row.to(tl.int64)[:, None] * experts + expert, acc, mask=mask)


@triton.jit
def sort_pairs(chosen, order, tiles, pairs, M: tl.constexpr, BLOCK: tl.constexpr):
    """Sort pairs by expert, in the order of pairs within one, and cut each expert's into tiles. Grid: (experts,).

    Expert e's tiles begin at (its first pair) // M + e: before it there are at most as many, so no expert has to
    know how many tiles the others have. Tiles in between are empty.

    In: chosen int64 [pairs], the expert of each pair.
    Out: order int32 [pairs], for each sorted position the pair; tiles int32 [pairs // M + experts, 3]: expert,
    first and last sorted position.
    """
    expert = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    mine = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, pairs, BLOCK):
        of = tl.load(chosen + begin + at, mask=begin + at < pairs, other=2147483647)
        before += (of < expert).to(tl.int32)
        mine += (of == expert).to(tl.int32)
    first = tl.sum(before)
    last = first + tl.sum(mine)
    position = first
    for begin in range(0, pairs, BLOCK):
        of = tl.load(chosen + begin + at, mask=begin + at < pairs, other=2147483647)
        here = (of == expert).to(tl.int32)
        tl.store(order + position + tl.cumsum(here, 0) - here, begin + at, mask=here == 1)
        position += tl.sum(here)
    tile = first // M + expert
    next_expert = last // M + expert + 1
    for begin in range(0, next_expert - tile, BLOCK):
        index = begin + at
        inside = index < next_expert - tile
        from_pair = tl.minimum(first + index * M, last)
        to = tiles + (tile + index) * 3
        tl.store(to, expert, mask=inside)
        tl.store(to + 1, from_pair, mask=inside)
        tl.store(to + 2, tl.minimum(from_pair + M, last), mask=inside)


@triton.jit
def multiply_experts(
    x, weight, bias, out, order, tiles, inputs, outputs, per_token,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Multiply each pair's row by its expert's weight. Grid: (tiles, tiles of outputs).

    Gated, x has a row for each token, and the result one for each sorted position. Otherwise x has a row for each
    sorted position, and the result one for each pair.

    In: x [tokens or pairs, inputs]; weight, bias for each expert; order, tiles from `sort_pairs`.
    Out: out [pairs, outputs]. GATED: 0, or the activation.
    """
    tile = tiles + tl.program_id(0) * 3
    expert, first, last = tl.load(tile).to(tl.int64), tl.load(tile + 1), tl.load(tile + 2)
    if first < last:
        position = first + tl.arange(0, M)
        valid = position < last
        pair = tl.load(order + position, mask=valid, other=0)
        row = (pair // per_token if GATED else position).to(tl.int64)
        column = tl.program_id(1) * N + tl.arange(0, N)
        inside = column < outputs
        k = tl.arange(0, K)
        wide = 2 * outputs if GATED else outputs
        weight += expert * wide * inputs
        acc = tl.zeros([M, N], tl.float32)
        acc_up = tl.zeros([M, N], tl.float32)
        for begin in range(0, inputs, K):
            there = begin + k < inputs
            part = tl.load(x + row[:, None] * inputs + begin + k, mask=valid[:, None] & there, other=0.0)
            at = weight + column.to(tl.int64)[:, None] * inputs + begin + k
            mask = inside[:, None] & there
            w = tl.load(at, mask=mask, other=0.0)
            acc = tl.dot(part, tl.trans(w), acc, input_precision=PRECISION)
            if GATED:
                w_up = tl.load(at + outputs.to(tl.int64) * inputs, mask=mask, other=0.0)
                acc_up = tl.dot(part, tl.trans(w_up), acc_up, input_precision=PRECISION)
        if BIASED:
            at_bias = bias + expert * wide + column
            acc += tl.load(at_bias, mask=inside, other=0.0).to(tl.float32)
            if GATED:
                acc_up += tl.load(at_bias + outputs, mask=inside, other=0.0).to(tl.float32)
        dtype = out.dtype.element_ty
        if GATED:
            # Both products are rounded as if they had been stored.
            acc = activate_gated(acc.to(dtype).to(tl.float32), acc_up.to(dtype).to(tl.float32), dtype, GATED)
        to = (position if GATED else pair).to(tl.int64)
        tl.store(out + to[:, None] * outputs + column, acc.to(dtype), mask=valid[:, None] & inside)


@triton.jit
def activate_gated(gate, up, dtype: tl.constexpr, GATED: tl.constexpr):
    """Return act(gate) * up in float32; see `layers.activations`."""
    if GATED == CLAMPED_SWIGLU:
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0)
        return (up + 1) * gate * tl.sigmoid(1.702 * gate)
    if GATED == GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        activated = gate * tl.sigmoid(2 * inner)
    else:
        activated = gate * tl.sigmoid(gate)
    return activated.to(dtype).to(tl.float32) * up


@triton.jit
def add_experts(each, weights, out, width, PER_TOKEN: tl.constexpr, BLOCK: tl.constexpr):
    """Add up each token's experts by their weights, in float32. Grid: (tokens, blocks of the width).

    In: each [tokens, PER_TOKEN, width]; weights float32 [tokens, PER_TOKEN]. Out: out [tokens, width].
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(PER_TOKEN):
        values = tl.load(each + (token * PER_TOKEN + rank) * width + column, mask=mask, other=0.0)
        total += tl.load(weights + token * PER_TOKEN + rank) * values.to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=mask)
