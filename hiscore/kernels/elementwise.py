"""Operations between the matrix products, each one pass over its rows: one program for each token.

`_store_row` stores the input of a projection: unchanged, or under FP8 as float8_e4m3fn with a scale for each row
(float32 [T]), computed while the row is in registers.
"""

import triton
import triton.language as tl

from hiscore.kernels import fp8
from hiscore.kernels.gemv import gated, launch_dependents, wait_for_predecessors

LARGEST = tl.constexpr(fp8.LARGEST)
SMALLEST_PEAK = tl.constexpr(fp8.SMALLEST_PEAK)


@triton.jit
def _store_row(value, out, scales, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr):
    """Store the first WIDTH of value [BLOCK] as a row of out [T, WIDTH]."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if FP8:
        value = value.to(tl.float32)
        peak = tl.maximum(tl.max(tl.where(inside, tl.abs(value), 0.0), axis=0), SMALLEST_PEAK)
        tl.store(scales + row, peak * (1 / LARGEST))
        # A NaN, and every value of a row with an infinity, becomes NaN.
        value = value * (tl.div_rn(1.0, peak) * LARGEST)
    tl.store(out + row * WIDTH + column, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def quantise(x, out, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Quantise rows to fp8, each with its own scale. Grid: (T,).

    Args:
        x: [T, WIDTH].
        out: Out: float8_e4m3fn [T, WIDTH].
        scales: Out: float32 [T].
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * WIDTH + column, mask=column < WIDTH, other=0.0)
    _store_row(value, out, scales, row, WIDTH, BLOCK, True)


@triton.jit
def embed(
    ids, table, x, h, h_scales, weight, scale, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """x = table[ids] * scale; h = rms_norm(x) * weight. Grid: (T,).

    Args:
        ids: int32 [T].
        table: [vocabulary, WIDTH].
        x: float32 [T, WIDTH], written.
        h, h_scales: [T, WIDTH] and under FP8 float32 [T], written.
        weight: float32 [WIDTH].
    """
    launch_dependents(CHAINED)
    wait_for_predecessors(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = tl.load(ids + token).to(tl.int64) * WIDTH
    value = tl.load(table + source + column, mask=inside, other=0.0).to(tl.float32) * scale
    tl.store(x + token * WIDTH + column, value, mask=inside)
    normed = _rms(value, WIDTH, eps) * tl.load(weight + column, mask=inside, other=0.0)
    _store_row(normed.to(table.dtype.element_ty), h, h_scales, token, WIDTH, BLOCK, FP8)


@triton.jit
def add_norm(
    x, update, h, h_scales, post_weight, weight, eps,
    WIDTH: tl.constexpr, SANDWICH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """x += update (under SANDWICH rms_norm(update) * post_weight); h = rms_norm(x) * weight. Grid: (T,).

    Args:
        x: float32 [T, WIDTH], updated in place.
        update: [T, WIDTH].
        h, h_scales: [T, WIDTH] and under FP8 float32 [T], written.
        post_weight, weight: float32 [WIDTH].
    """
    launch_dependents(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = token * WIDTH + column
    factor = tl.load(weight + column, mask=inside, other=0.0)
    wait_for_predecessors(CHAINED)
    change = tl.load(update + at, mask=inside, other=0.0)
    if SANDWICH:
        post = tl.load(post_weight + column, mask=inside, other=0.0)
        change = (_rms(change.to(tl.float32), WIDTH, eps) * post).to(update.dtype.element_ty)
    value = tl.load(x + at, mask=inside, other=0.0) + change.to(tl.float32)
    tl.store(x + at, value, mask=inside)
    normed = _rms(value, WIDTH, eps) * factor
    _store_row(normed.to(update.dtype.element_ty), h, h_scales, token, WIDTH, BLOCK, FP8)


@triton.jit
def _rms(value, WIDTH: tl.constexpr, eps):
    return value * tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)


@triton.jit
def rope_and_cache(
    qkv,
    positions,
    cos,
    sin,
    q_norm,
    k_norm,
    pool,
    slot_mapping,
    pool_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Rotate the heads of q and k in place, under NORMED after an RMSNorm; write k and v to the pool. Grid: (T,).

    Args:
        qkv: [T, (heads + 2 kv_heads) head_dim], updated in place.
        positions: int32 [T].
        cos, sin: float32 [context, head_dim / 2].
        q_norm, k_norm: float32 [head_dim], read under NORMED.
        pool: [slots, 2, kv_heads, head_dim], updated in place.
        slot_mapping: int32 [T], -1 to write nothing.
    """
    launch_dependents(CHAINED)
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    half = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < HEADS + KV_HEADS) & (half < HALF)
    angle = tl.load(positions + token).to(tl.int64) * HALF + half
    c = tl.load(cos + angle, mask=half < HALF, other=0.0)
    s = tl.load(sin + angle, mask=half < HALF, other=0.0)
    if NORMED:
        in_half = half < HALF
        q_first = tl.load(q_norm + half, mask=in_half, other=0.0)
        q_second = tl.load(q_norm + half + HALF, mask=in_half, other=0.0)
        k_first = tl.load(k_norm + half, mask=in_half, other=0.0)
        k_second = tl.load(k_norm + half + HALF, mask=in_half, other=0.0)
    wait_for_predecessors(CHAINED)
    at = qkv + token * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + head * HEAD_DIM + half
    # Load everything before the first store: one memory latency instead of three.
    slot = tl.load(slot_mapping + token).to(tl.int64)
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    kept = (half < HALF) & (head >= HEADS) & (head < tl.where(slot >= 0, HEADS + KV_HEADS, 0))
    values = at + KV_HEADS * HEAD_DIM
    first_value = tl.load(values, mask=kept, other=0.0)
    second_value = tl.load(values + HALF, mask=kept, other=0.0)
    if NORMED:
        squares = tl.sum(first * first + second * second, axis=1)
        factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        is_q = head < HEADS
        first = (first * factor * tl.where(is_q, q_first, k_first)).to(qkv.dtype.element_ty).to(tl.float32)
        second = (second * factor * tl.where(is_q, q_second, k_second)).to(qkv.dtype.element_ty)
        second = second.to(tl.float32)
    turned_first = (first * c - second * s).to(qkv.dtype.element_ty)
    turned_second = (second * c + first * s).to(qkv.dtype.element_ty)
    tl.store(at, turned_first, mask=inside)
    tl.store(at + HALF, turned_second, mask=inside)
    to = pool + slot * pool_stride + (head - HEADS) * HEAD_DIM + half
    tl.store(to, turned_first, mask=kept)
    tl.store(to + HALF, turned_second, mask=kept)
    to += KV_HEADS * HEAD_DIM
    tl.store(to, first_value, mask=kept)
    tl.store(to + HALF, second_value, mask=kept)


@triton.jit
def activate(gate_up, out, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """act(gate) * up. Grid: (T, blocks of BLOCK).

    Args:
        gate_up: [T, 2 WIDTH], gate first.
        out: Out: [T, WIDTH].
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = _gated(gate_up + token * 2 * WIDTH + column, inside, WIDTH, GELU)
    tl.store(out + token * WIDTH + column, value, mask=inside)


@triton.jit
def activate_fp8(gate_up, out, scales, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """`activate` to fp8. Grid: (T,): a row has one scale, so one program computes all of it.

    Args:
        gate_up: [T, 2 WIDTH], gate first.
        out: Out: float8_e4m3fn [T, WIDTH].
        scales: Out: float32 [T].
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = _gated(gate_up + token * 2 * WIDTH + column, column < WIDTH, WIDTH, GELU)
    _store_row(value, out, scales, token, WIDTH, BLOCK, True)


@triton.jit
def _gated(at, inside, WIDTH: tl.constexpr, GELU: tl.constexpr):
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0)
    return gated(gate, up, GELU)
