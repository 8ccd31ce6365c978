"""Products of low rank, each row's by the adapter that computes it, for any mixture of adapters in a forward.

A tile of rows is multiplied for each adapter that it has a row of, and each row keeps its own. So what shares its
tile changes no sum and no order of sums, and tiles without adapters read nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, INPUTS = 16, 64, 64
"""A program's tile, which has not been timed yet."""


@triton.jit
def multiply_low_rank(
    x, weight, firsts, numbers, out, rows, inputs, outputs, x_stride, out_stride,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, UP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Multiply each row by its adapter's matrix. Grid: (tiles of rows, tiles of outputs).

    In: x [R, inputs]; numbers int32 [R], adapters, 0: none; firsts int32 [adapters], the first of each number's
    ranks; weight [ranks of all, inputs], or under UP [ranks of all, outputs].
    Out: out [R, outputs], to which it is added under UP.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column, k = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    valid, inside, at = (row < rows)[:, None], column < outputs, row.to(tl.int64)[:, None]
    number = tl.load(numbers + row, mask=row < rows, other=0)
    own = tl.zeros([M, N], tl.float32)
    left = number
    adapter = tl.max(left)
    while adapter > 0:
        first = tl.load(firsts + adapter).to(tl.int64)
        ranks = tl.load(firsts + adapter + 1) - first
        acc = tl.zeros([M, N], tl.float32)
        for begin in range(0, inputs, K):
            inner = begin + k
            there = inner < inputs
            if UP:
                to = weight + (first + inner)[:, None] * outputs + column
                mask = (inner < ranks)[:, None] & inside
            else:
                to = weight + (first + column) * inputs + inner[:, None]
                mask = there[:, None] & (column < ranks)
            values = tl.load(x + at * x_stride + inner, mask=valid & there, other=0.0)
            acc = tl.dot(values, tl.load(to, mask=mask, other=0.0), acc, input_precision=PRECISION)
        own = tl.where((number == adapter)[:, None], acc, own)
        left = tl.where(left == adapter, 0, left)
        adapter = tl.max(left)
    to = out + at * out_stride + column
    mask = valid & inside
    if UP:
        mask = (number > 0)[:, None] & inside
        own += tl.load(to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to, own.to(out.dtype.element_ty), mask=mask)


def add_low_rank(
    out: Tensor, x: Tensor, down: Tensor, up: Tensor, firsts: Tensor, rank: int, numbers: Tensor
) -> None:
    """Add to each row of out [R, columns] the product of its adapter; `rank` is the largest of all."""
    low = x.new_empty((len(x), rank))
    for read, weight, to, is_up in ((x, down, low, False), (low, up, out, True)):
        inputs, outputs = read.shape[1], to.shape[1]
        multiply_low_rank[(triton.cdiv(len(x), ROWS), triton.cdiv(outputs, COLUMNS))](
            read, weight, firsts, numbers, to, len(x), inputs, outputs, read.stride(0), to.stride(0),
            M=ROWS, N=COLUMNS, K=INPUTS, UP=is_up,
            # Triton's default for float32 would be TF32, with 10 bits of mantissa.
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        )  # fmt: skip
