"""Products in fp8 with a scale for each row and block of columns of x, and for each block of the weight.

Each block of columns is multiplied by itself and added up in float32, in order: tensor cores add fp8 with few bits
for longer sums, and what shares a row's tile changes none of its sums.

x and weight are float8_e4m3fn, x_scales float32 [rows, blocks of K inputs], scales float32 [blocks of R outputs,
blocks of K inputs].
"""

import triton
import triton.language as tl

from hiscore.kernels import fp8
from hiscore.kernels.experts import activate_gated

LARGEST = tl.constexpr(fp8.FP8_LARGEST)
SMALLEST_PEAK = tl.constexpr(fp8.SMALLEST_PEAK)
MANTISSA = tl.constexpr(0x7FFFFF)


@triton.jit
def quantise_blocks(
    x, out, scales, width, blocks, K: tl.constexpr, BLOCKS: tl.constexpr, POWERS_OF_TWO: tl.constexpr
):
    """Round each row's blocks of K columns to fp8. Grid: (rows, tiles of BLOCKS blocks).

    In: x [rows, width]. Out: out float8_e4m3fn [rows, width]; scales float32 [rows, blocks].
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * K + tl.arange(0, K)
    value = tl.load(x + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    peak = tl.maximum(tl.max(tl.abs(value), axis=1), SMALLEST_PEAK)
    scale, factor = peak * (1 / LARGEST), tl.div_rn(1.0, peak) * LARGEST
    if POWERS_OF_TWO:
        scale = ((scale.to(tl.int32, bitcast=True) + MANTISSA) & ~MANTISSA).to(tl.float32, bitcast=True)
        factor = tl.div_rn(1.0, scale)
    tl.store(scales + row * blocks + block, scale, mask=block < blocks)
    tl.store(
        out + row * width + column, (value * factor[:, None]).to(out.dtype.element_ty), mask=column < width
    )


@triton.jit
def multiply_scaled(
    x, x_scales, weight, scales, out, rows, outputs, inputs, blocks,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Set out = x weight^T. Grid: (tiles of outputs, tiles of rows)."""
    column = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.program_id(1) * M + tl.arange(0, M)
    valid, inside, k = row < rows, column < outputs, tl.arange(0, K)
    acc = tl.zeros([M, N], tl.float32)
    for block in range(0, blocks):
        at = block * K + k
        there = at < inputs
        part = tl.load(x + row.to(tl.int64)[:, None] * inputs + at, mask=valid[:, None] & there, other=0.0)
        w = tl.load(
            weight + column.to(tl.int64)[:, None] * inputs + at, mask=inside[:, None] & there, other=0.0
        )
        of_rows = tl.load(x_scales + row * blocks + block, mask=valid, other=0.0)
        of_columns = tl.load(scales + column // R * blocks + block, mask=inside, other=0.0)
        acc += tl.dot(part, tl.trans(w)) * (of_rows[:, None] * of_columns)
    to = out + row.to(tl.int64)[:, None] * outputs + column
    tl.store(to, acc.to(out.dtype.element_ty), mask=valid[:, None] & inside)


@triton.jit
def multiply_scaled_experts(
    x, x_scales, weight, scales, out, order, tiles, inputs, outputs, blocks, row_blocks, per_token,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, R: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """`experts.multiply_experts` in fp8, scales [experts, row_blocks, blocks]. Grid: (tiles, tiles of outputs)."""
    tile = tiles + tl.program_id(0) * 3
    expert, first, last = tl.load(tile).to(tl.int64), tl.load(tile + 1), tl.load(tile + 2)
    if first < last:
        position = first + tl.arange(0, M)
        valid = position < last
        pair = tl.load(order + position, mask=valid, other=0)
        row = (pair // per_token if GATED else position).to(tl.int64)
        column = tl.program_id(1) * N + tl.arange(0, N)
        inside, k = column < outputs, tl.arange(0, K)
        weight += expert * (2 * outputs if GATED else outputs) * inputs
        scales += expert * row_blocks * blocks
        acc = tl.zeros([M, N], tl.float32)
        acc_up = tl.zeros([M, N], tl.float32)
        for block in range(0, blocks):
            column_k = block * K + k
            there = column_k < inputs
            part = tl.load(x + row[:, None] * inputs + column_k, mask=valid[:, None] & there, other=0.0)
            of_rows = tl.load(x_scales + row * blocks + block, mask=valid, other=0.0)[:, None]
            at = weight + column.to(tl.int64)[:, None] * inputs + column_k
            mask = inside[:, None] & there
            w = tl.load(at, mask=mask, other=0.0)
            of_columns = tl.load(scales + column // R * blocks + block, mask=inside, other=0.0)
            acc += tl.dot(part, tl.trans(w)) * (of_rows * of_columns)
            if GATED:
                w_up = tl.load(at + outputs.to(tl.int64) * inputs, mask=mask, other=0.0)
                of_up = tl.load(scales + (column + outputs) // R * blocks + block, mask=inside, other=0.0)
                acc_up += tl.dot(part, tl.trans(w_up)) * (of_rows * of_up)
        dtype = out.dtype.element_ty
        if GATED:
            # Both products are rounded as if they had been stored.
            acc = activate_gated(acc.to(dtype).to(tl.float32), acc_up.to(dtype).to(tl.float32), dtype, GATED)
        to = (position if GATED else pair).to(tl.int64)
        tl.store(out + to[:, None] * outputs + column, acc.to(dtype), mask=valid[:, None] & inside)
