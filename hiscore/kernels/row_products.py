"""Multiply up to 16 rows by a weight at the speed of reading the weight: for decode steps of some sequences.

A library's kernels for so few rows leave multiprocessors idle on a weight of a few MiB, or split its sums and add
them up in another kernel. Here each program holds its part of the weight in registers, and each of its warps adds
up a part of the inputs by tensor cores. Launched as in `gemv` (`chained`), it loads its weight while earlier
kernels still run. Sums are in float32, in the same order for any number of rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hiscore.kernels.dot_size import dot_size
from hiscore.kernels.gemv import (
    gated,
    launch_dependents,
    pdl_launch_kwargs,
    product_output,
    wait_for_predecessors,
)

MAX_ROWS = 16
"""With more, `pipelined_products` is faster, or a library where that does not run."""
MAX_INPUTS = 4096
"""More would not fit the registers of a program."""
MAX_WEIGHTS = 3 * 2**21
"""Of larger ones each multiprocessor has several parts: `pipelined_products` and libraries read those faster."""
BLOCK = 16
"""Outputs of a program."""
STEP = 1024
"""Inputs that all warps add up at once."""


@triton.jit
def multiply_rows(
    x, weight, bias, out, rows, outputs,
    K: tl.constexpr, ROWS: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """out = x weight^T + bias. Grid: (blocks of BLOCK outputs,).

    Args:
        x: [rows, K], at most ROWS of them.
        weight: [outputs, K]; under GATED [2 outputs, K], of gate and up.
        bias: [outputs], read under BIASED.
        out: Out: [rows, outputs]; under GATED act(x gate^T) * (x up^T), with both products rounded as if they had
            been stored.
        PARTS: Parts of the inputs that are added up side by side: one for each warp.
    """
    launch_dependents(CHAINED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = (tl.arange(0, PARTS) * (STEP // PARTS))[:, None] + tl.arange(0, STEP // PARTS)[None, :]
    inside = n < outputs
    at = weight + n.to(tl.int64)[None, :, None] * K + k[:, None, :]
    weights, up_weights = (), ()
    for begin in tl.static_range(0, K, STEP):
        mask = inside[None, :, None]
        if begin + STEP > K:
            mask = mask & (begin + k < K)[:, None, :]
        weights = weights + (tl.load(at + begin, mask=mask, other=0.0),)  # noqa: RUF005
        if GATED:
            up_at = at + outputs.to(tl.int64) * K
            up_weights = up_weights + (tl.load(up_at + begin, mask=mask, other=0.0),)  # noqa: RUF005
    if BIASED:
        added = tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    wait_for_predecessors(CHAINED)
    row = tl.arange(0, ROWS)
    total = tl.zeros([PARTS, ROWS, BLOCK], tl.float32)
    up_total = tl.zeros([PARTS, ROWS, BLOCK], tl.float32)
    for begin in tl.static_range(0, K, STEP):
        there = (row < rows)[None, :, None]
        if begin + STEP > K:
            there = there & (begin + k < K)[:, None, :]
        value = tl.load(x + row[None, :, None] * K + (begin + k)[:, None, :], mask=there, other=0.0)
        columns = tl.permute(weights[begin // STEP], (0, 2, 1))
        total = tl.dot(value, columns, total, input_precision=PRECISION)
        if GATED:
            columns = tl.permute(up_weights[begin // STEP], (0, 2, 1))
            up_total = tl.dot(value, columns, up_total, input_precision=PRECISION)
    result = tl.sum(total, axis=0)
    if BIASED:
        result += added[None, :]
    result = result.to(out.dtype.element_ty)
    if GATED:
        up = tl.sum(up_total, axis=0).to(out.dtype.element_ty)
        result = gated(result.to(tl.float32), up, GELU)
    tl.store(out + row[:, None] * outputs + n[None, :], result, mask=(row < rows)[:, None] & inside[None, :])


def fits(weight: Tensor) -> bool:
    """Whether `multiply` supports a weight, and is faster than a library with up to `MAX_ROWS` rows."""
    two_bytes = weight.element_size() == 2
    return two_bytes and weight.shape[1] <= MAX_INPUTS and weight.numel() <= MAX_WEIGHTS


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, gelu: int | None = None, chained: bool = False
) -> Tensor:
    """x weight^T + bias, for a weight that `fits`.

    Args:
        x: [rows, in], at most `MAX_ROWS`.
        weight: [out, in]; with gelu not None [2 out, in], of gate and up.
        bias: [out].
        gelu: Return act(gate) * up, with act SiLU (0), GELU by tanh (1) or exact (2).
        chained: See `pdl_launch_kwargs`.

    Returns:
        [rows, out], in weight's dtype.

    Raises:
        ValueError: A tensor is not contiguous.
    """
    rows, inputs = x.shape
    out = product_output(x, weight, gelu)
    outputs = out.shape[1]
    step = min(STEP, triton.next_power_of_2(inputs))
    warps = 4 if inputs <= 2 * STEP else 8  # whose registers hold the weights of a program
    multiply_rows[(triton.cdiv(outputs, BLOCK),)](
        x, weight, weight if bias is None else bias, out, rows, outputs,
        K=inputs, ROWS=dot_size(rows), BIASED=bias is not None, GATED=gelu is not None, GELU=gelu or 0,
        BLOCK=BLOCK, STEP=step, PARTS=min(warps, max(1, step // 16)),
        PRECISION="ieee" if weight.dtype == torch.float32 else "tf32",
        num_warps=warps, **pdl_launch_kwargs(chained),
    )  # fmt: skip
    return out
