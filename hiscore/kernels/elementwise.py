"""Operations between the matrix products, each one pass over its rows: one program for each token.

Shapes are [T, WIDTH], but of ids, int32 [T], *scales, float32 [T], norm weights, float32 [WIDTH], and the table,
[vocabulary, WIDTH]. The residual stream x is float32. `_store_row` stores the input of a projection: unchanged, or
under FP8 with a scale for each row, computed while the row is in registers.
"""

import triton
import triton.language as tl

from hiscore.kernels import fp8
from hiscore.kernels.gemv import gated, launch_dependents, wait_for_predecessors

FP8_LARGEST = tl.constexpr(fp8.FP8_LARGEST)
SMALLEST_PEAK = tl.constexpr(fp8.SMALLEST_PEAK)


@triton.jit
def _store_row(value, out, scales, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if FP8:
        value = value.to(tl.float32)
        peak = tl.maximum(tl.max(tl.where(inside, tl.abs(value), 0.0), axis=0), SMALLEST_PEAK)
        tl.store(scales + row, peak * (1 / FP8_LARGEST))
        # A NaN, and every value of a row with an infinity, becomes NaN.
        value = value * (tl.div_rn(1.0, peak) * FP8_LARGEST)
    tl.store(out + row * WIDTH + column, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def quantise(x, out, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Quantise rows to float8_e4m3fn, each with its own scale. Grid: (T,)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * WIDTH + column, mask=column < WIDTH, other=0.0)
    _store_row(value, out, scales, row, WIDTH, BLOCK, FP8=True)


@triton.jit
def embed(
    ids, table, x, h, h_scales, weight, scale, eps,
    WIDTH: tl.constexpr, NORMED: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Set x = table[ids] * scale; h = norm(x) * weight, or x without NORMED. Grid: (T,)."""
    launch_dependents(CHAINED)
    wait_for_predecessors(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = tl.load(ids + token).to(tl.int64) * WIDTH
    value = tl.load(table + source + column, mask=inside, other=0.0).to(tl.float32) * scale
    tl.store(x + token * WIDTH + column, value, mask=inside)
    if NORMED:
        factor = tl.load(weight + column, mask=inside, other=0.0)
        value = _normed(value, inside, WIDTH, CENTRED, eps) * factor
    _store_row(value.to(table.dtype.element_ty), h, h_scales, token, WIDTH, BLOCK, FP8)


@triton.jit
def add_norm(
    x, update, h, h_scales, post_weight, weight, eps,
    WIDTH: tl.constexpr, SANDWICH: tl.constexpr, NORMED: tl.constexpr, CENTRED: tl.constexpr,
    BLOCK: tl.constexpr, FP8: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Set x += update or norm(update) * post_weight; h = norm(x) * weight or x. Grid: (T,).

    SANDWICH reads post_weight, NORMED weight.
    """
    launch_dependents(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = token * WIDTH + column
    if NORMED:
        factor = tl.load(weight + column, mask=inside, other=0.0)
    wait_for_predecessors(CHAINED)
    change = tl.load(update + at, mask=inside, other=0.0)
    if SANDWICH:
        post = tl.load(post_weight + column, mask=inside, other=0.0)
        change = _normed(change.to(tl.float32), inside, WIDTH, CENTRED, eps) * post
        change = change.to(update.dtype.element_ty)
    value = tl.load(x + at, mask=inside, other=0.0) + change.to(tl.float32)
    tl.store(x + at, value, mask=inside)
    if NORMED:
        value = _normed(value, inside, WIDTH, CENTRED, eps) * factor
    _store_row(value.to(update.dtype.element_ty), h, h_scales, token, WIDTH, BLOCK, FP8)


@triton.jit
def _normed(value, inside, WIDTH: tl.constexpr, CENTRED: tl.constexpr, eps):
    """An RMS norm of value [BLOCK], zero outside; under CENTRED a layer norm."""
    if CENTRED:
        value = tl.where(inside, value - tl.sum(value, axis=0) / WIDTH, 0.0)
    return value * tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)


@triton.jit
def activate(gate_up, out, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """Set out = act(gate) * up, gate_up [T, 2 WIDTH], gate first. Grid: (T, blocks of BLOCK)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = _gated(gate_up + token * 2 * WIDTH + column, inside, WIDTH, GELU)
    tl.store(out + token * WIDTH + column, value, mask=inside)


@triton.jit
def activate_quantised(
    gate_up, out, scales, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """`activate` to float8_e4m3fn. Grid: (T,): a row has one scale, so one program computes all of it."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = _gated(gate_up + token * 2 * WIDTH + column, column < WIDTH, WIDTH, GELU)
    _store_row(value, out, scales, token, WIDTH, BLOCK, FP8=True)


@triton.jit
def _gated(at, inside, WIDTH: tl.constexpr, GELU: tl.constexpr):
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0)
    return gated(gate, up, GELU)
