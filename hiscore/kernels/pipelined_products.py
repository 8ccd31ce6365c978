"""Multiply some dozens of rows by a weight at the speed of reading the weight: for decode steps of some sequences.

A library's kernels for so few rows read a weight at three quarters of the memory's speed. Here the weight is the
left operand of the tensor cores, 64 outputs a program, and its tiles are loaded several steps ahead. Where that
makes too few programs, several add up a part of the inputs each, and the last to end adds up their sums. Sums are
in float32, in the same order for any number of rows. Launched as in `gemv` (`chained`), a program has its first
tiles fetched while earlier kernels still run.
"""

from functools import cache

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

MAX_ROWS = 64
"""Limit beyond which a library's kernels are faster."""
BLOCK = 64
"""Outputs of a program, of gate and up together: the least that Hopper's tensor cores take on the left."""
STEP = 128
STAGES, SHORT_STAGES = 6, 4
"""Tiles on their way to a program; of more than 32 rows, where a program has few tiles."""
MIN_PROGRAMS, MAX_SPLITS = 64, 4
"""Inputs are divided until there are so many programs. More splits cost more than they gain."""


@triton.jit
def multiply_pipelined(
    x, weight, bias, out, partial, arrived, rows, outputs, inputs,
    ROWS: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Compute a product of at most ROWS rows. Grid: (tiles of BLOCK columns, SPLITS).

    Under GATED both products are rounded as if they had been stored. If SPLITS > 1, partial is scratch, float32
    [tiles, SPLITS, BLOCK, ROWS], and arrived, int32 [tiles], counts programs that have added up their part, from 0
    and back to 0.
    """
    launch_dependents(CHAINED)
    tile, split = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    if GATED:
        HALF: tl.constexpr = BLOCK // 2
        of_weight = tile * HALF + column % HALF + tl.where(column < HALF, 0, outputs)
    else:
        of_weight = tile * BLOCK + column
    row, k = tl.arange(0, ROWS), tl.arange(0, STEP)
    share = inputs // SPLITS
    at = weight + of_weight.to(tl.int64)[:, None] * inputs + (split * share + k)[None, :]
    x_at = x + row[:, None] * inputs + (split * share + k)[None, :]
    there = (row < rows)[:, None]
    if CHAINED:
        _prefetch(weight, of_weight, inputs, split * share, tl.minimum(STAGES * STEP, share), BLOCK)
    wait_for_predecessors(CHAINED)
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    for _ in tl.range(0, share // STEP, num_stages=STAGES):
        part = tl.load(at, eviction_policy="evict_first")
        values = tl.load(x_at, mask=there, other=0.0)
        total = tl.dot(part, values.T, total, input_precision=PRECISION)
        at += STEP
        x_at += STEP
    is_last = True
    if SPLITS > 1:
        sums = partial + tile * SPLITS * BLOCK * ROWS + column[:, None] * ROWS + row[None, :]
        tl.store(sums + split * BLOCK * ROWS, total)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
        is_last = before == SPLITS - 1
        if is_last:
            tl.store(arrived + tile, 0)
            total = tl.zeros([BLOCK, ROWS], tl.float32)
            for other in tl.static_range(SPLITS):
                # What other programs have stored is in the L2 cache.
                total += tl.load(sums + other * BLOCK * ROWS, cache_modifier=".cg")
    if is_last:
        if GATED:
            both = tl.reshape(total.to(out.dtype.element_ty), [2, HALF, ROWS])
            gate, up = tl.split(tl.permute(both, [1, 2, 0]))
            result = gated(gate.to(tl.float32), up, GELU)
            n = tile * HALF + tl.arange(0, HALF)
        else:
            n = tile * BLOCK + column
            if BIASED:
                total += tl.load(bias + n).to(tl.float32)[:, None]
            result = total.to(out.dtype.element_ty)
        tl.store(out + row[None, :] * outputs + n[:, None], result, mask=(row < rows)[None, :])


@triton.jit
def _prefetch(weight, of_weight, inputs, first, count, BLOCK: tl.constexpr):
    """Bring the first `count` inputs of a program's outputs into the L2 cache, without waiting for them."""
    LINE: tl.constexpr = 64
    # 16 lines are 1,024 inputs: STAGES * STEP are 768. Those beyond `count` are its last line once more.
    of_line = tl.arange(0, 16) * LINE
    at = (
        weight + of_weight.to(tl.int64)[:, None] * inputs + first + tl.minimum(of_line, count - LINE)[None, :]
    )
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )


def fits(weight: Tensor) -> bool:
    """True if `multiply` supports a weight."""
    outputs, inputs = weight.shape
    return weight.element_size() == 2 and outputs % BLOCK == 0 and inputs % STEP == 0


def splits_of(tiles: int, inputs: int) -> int:
    """Parts in which the inputs of so many tiles are added up: 1, 2 or 4."""
    splits = 1
    while splits < MAX_SPLITS and 2 * splits * tiles <= MIN_PROGRAMS and inputs % (2 * splits * STEP) == 0:
        splits *= 2
    return splits


@cache
def _arrived(device: torch.device) -> Tensor:
    # Made when a graph's launches are tried, before they are captured: all graphs share it.
    return torch.zeros(MIN_PROGRAMS, dtype=torch.int32, device=device)


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, gelu: int | None = None, chained: bool = False
) -> Tensor:
    """x weight^T + bias, for a weight that `fits`; on one CUDA stream of a device.

    Arguments are those of `gemv.multiply`, with at most `MAX_ROWS` rows and either bias or gelu.

    Raises:
        ValueError: A tensor is not contiguous.
    """
    rows, inputs = x.shape
    out = product_output(x, weight, gelu)
    tiles, of_dot = len(weight) // BLOCK, dot_size(rows)
    splits = splits_of(tiles, inputs)
    short = of_dot > 32 and inputs // splits <= 8 * STEP
    partial = out if splits == 1 else out.new_empty(tiles * splits * BLOCK * of_dot, dtype=torch.float32)
    multiply_pipelined[(tiles, splits)](
        x, weight, weight if bias is None else bias, out, partial, _arrived(weight.device),
        rows, out.shape[1], inputs,
        ROWS=of_dot, BIASED=bias is not None, GATED=gelu is not None, GELU=gelu or 0, SPLITS=splits,
        BLOCK=BLOCK, STEP=STEP, STAGES=SHORT_STAGES if short else STAGES,
        PRECISION="ieee" if weight.dtype == torch.float32 else "tf32",
        num_warps=4, **pdl_launch_kwargs(chained),
    )  # fmt: skip
    return out
