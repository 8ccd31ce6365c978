"""x weight^T in fp8, with a scale for each row of x, and one for each row and block of columns of the weight."""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, OUTPUTS = 128, 128
"""Rows of a tile, for any batch: other rows of a batch must not change a row's sums."""
WARPS, STAGES = 8, 3


@triton.jit
def multiply_block_fp8(
    x, x_scales, weight, scales, bias, out, rows, outputs, inputs, blocks,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Compute out = x weight^T + bias. Grid: (tiles of rows, tiles of outputs).

    In: x, weight float8_e4m3fn; x_scales float32 [rows]; scales float32 [outputs, blocks of K inputs].
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    valid, inside = row < rows, column < outputs
    acc = tl.zeros([M, N], tl.float32)
    for block in range(0, blocks):
        at = block * K + k
        there = at < inputs
        part = tl.load(x + row.to(tl.int64)[:, None] * inputs + at, mask=valid[:, None] & there, other=0.0)
        w = tl.load(
            weight + column.to(tl.int64)[:, None] * inputs + at, mask=inside[:, None] & there, other=0.0
        )
        scale = tl.load(scales + column.to(tl.int64) * blocks + block, mask=inside, other=0.0)
        acc += tl.dot(part, tl.trans(w)) * scale
    acc *= tl.load(x_scales + row, mask=valid, other=0.0)[:, None]
    if BIASED:
        # The product is rounded as if it had been stored.
        acc = acc.to(out.dtype.element_ty).to(tl.float32)
        acc += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    to = out + row.to(tl.int64)[:, None] * outputs + column
    tl.store(to, acc.to(out.dtype.element_ty), mask=valid[:, None] & inside)


def multiply(
    x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, block: int
) -> Tensor:
    """Return x weight^T + bias in bfloat16, [rows, out].

    Args:
        x, weight: float8_e4m3fn [rows, in], [out, in].
        x_scales, scales: float32 [rows, 1], [out, blocks].
        block: Columns of a block: a power of two.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    out = torch.empty((rows, outputs), dtype=torch.bfloat16, device=x.device)
    if rows:
        multiply_block_fp8[(triton.cdiv(rows, ROWS), triton.cdiv(outputs, OUTPUTS))](
            x, x_scales, weight, scales, scales if bias is None else bias, out,
            rows, outputs, inputs, scales.shape[1],
            M=ROWS, N=OUTPUTS, K=block, BIASED=bias is not None, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out
