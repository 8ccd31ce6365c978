"""Multiply a few rows by a weight at the speed of reading the weight: for decode steps of few sequences.

cuBLAS works on tiles of rows and leaves most of a GPU idle on a weight of a few MiB. Here each program holds its
part of the weight in registers. Under programmatic dependent launch (`chained`) it starts while earlier kernels
still run, loads its weight, and only then waits for them. Sums are in float32, in the same order for any number of
rows.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

GEMV_MAX_ROWS = 4
GEMV_MAX_INPUTS = 4096
"""More inputs would not fit the registers of a program."""
WEIGHTS_PER_PROGRAM = 16_384
STEP = 1024


@triton.jit
def launch_dependents(CHAINED: tl.constexpr):
    """Let the next kernel start: it may load only what no kernel of the chain writes, until it has waited."""
    if CHAINED:
        gdc_launch_dependents()


@triton.jit
def wait_for_predecessors(CHAINED: tl.constexpr):
    """Wait until all earlier kernels have completed and their stores are visible.

    Every kernel in the chain must wait; otherwise completion does not imply that its predecessors completed.
    """
    if CHAINED:
        gdc_wait()


@triton.jit
def multiply_few_rows(
    x, norm, weight, bias, out, outputs, eps,
    K: tl.constexpr, ROWS: tl.constexpr, NORMED: tl.constexpr, BIASED: tl.constexpr, ONTO: tl.constexpr,
    GATED: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Compute a product. Grid: (blocks of BLOCK outputs,).

    In: x [ROWS, K], under NORMED float32, replaced by rms_norm(x) * norm [K], rounded to weight's dtype.
    Out: out, to which ONTO adds the product. Under GATED both products are rounded as if they had been stored.
    """
    launch_dependents(CHAINED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, STEP)
    inside = n < outputs
    at = weight + n.to(tl.int64)[:, None] * K + k[None, :]
    up_at = at + outputs.to(tl.int64) * K
    parts, up_parts, norms = (), (), ()
    for begin in tl.static_range(0, K, STEP):
        mask = inside[:, None]
        if begin + STEP > K:
            mask = mask & (begin + k < K)[None, :]
        parts = parts + (tl.load(at + begin, mask=mask, other=0.0),)  # noqa: RUF005
        if GATED:
            up_parts = up_parts + (tl.load(up_at + begin, mask=mask, other=0.0),)  # noqa: RUF005
        if NORMED:
            norms = norms + (tl.load(norm + begin + k, mask=begin + k < K, other=0.0),)  # noqa: RUF005
    if BIASED:
        added = tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    wait_for_predecessors(CHAINED)
    for row in tl.static_range(ROWS):
        to = out + row * outputs + n
        if ONTO:
            before = tl.load(to, mask=inside, other=0.0)
        values = ()
        for begin in tl.static_range(0, K, STEP):
            value = tl.load(x + row * K + begin + k, mask=begin + k < K, other=0.0).to(tl.float32)
            values = values + (value,)  # noqa: RUF005
        if NORMED:
            squares = tl.zeros([STEP], tl.float32)
            for begin in tl.static_range(0, K, STEP):
                squares += values[begin // STEP] * values[begin // STEP]
            factor = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        total = tl.zeros([BLOCK, STEP], tl.float32)
        up_total = tl.zeros([BLOCK, STEP], tl.float32)
        for begin in tl.static_range(0, K, STEP):
            value = values[begin // STEP]
            if NORMED:
                value = (value * factor * norms[begin // STEP]).to(weight.dtype.element_ty).to(tl.float32)
            total += parts[begin // STEP].to(tl.float32) * value[None, :]
            if GATED:
                up_total += up_parts[begin // STEP].to(tl.float32) * value[None, :]
        result = tl.sum(total, axis=1)
        if BIASED:
            result += added
        if ONTO:
            result += before
        result = result.to(out.dtype.element_ty)
        if GATED:
            up = tl.sum(up_total, axis=1).to(out.dtype.element_ty)
            result = gated(result.to(tl.float32), up, GELU)
        tl.store(to, result, mask=inside)


@triton.jit
def gated(gate, up, GELU: tl.constexpr):
    """act(gate) * up, with gate in float32 and act(gate) rounded to up's dtype."""
    if GELU == 2:
        gate = gate * 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    elif GELU:
        # tanh(z) = 2 sigmoid(2 z) - 1
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(2 * inner)
    else:
        gate = gate * tl.sigmoid(gate)
    gate = gate.to(up.dtype).to(tl.float32)
    return (gate * up.to(tl.float32)).to(up.dtype)


def pdl_launch_kwargs(chained: bool) -> dict[str, bool]:
    """Launch arguments of a kernel that has the parameter CHAINED.

    Under programmatic dependent launch every earlier kernel of the CUDA stream must have completed, or call
    `wait_for_predecessors`.
    """
    return {"CHAINED": True, "launch_pdl": True} if chained else {"CHAINED": False}


def fits(rows: int, inputs: int) -> bool:
    """True if `multiply` supports this many rows and inputs."""
    return 0 < rows <= GEMV_MAX_ROWS and inputs <= GEMV_MAX_INPUTS


def product_output(x: Tensor, weight: Tensor, gelu: int | None, onto: Tensor | None = None) -> Tensor:
    """Check that tensors are contiguous; return `onto`, or a new tensor for the product of `multiply`."""
    outputs = len(weight) if gelu is None else len(weight) // 2
    out = weight.new_empty((len(x), outputs)) if onto is None else onto
    if not (x.is_contiguous() and weight.is_contiguous() and out.is_contiguous()):
        raise ValueError("products of a step's rows need contiguous tensors")
    return out


@dataclass(frozen=True)
class Normed:
    """rms_norm(x) * weight, computed by the product that reads it."""

    x: Tensor  # float32 [rows, in]
    weight: Tensor  # float32 [in]
    eps: float

    @property
    def shape(self) -> torch.Size:
        return self.x.shape


def multiply(
    x: Tensor | Normed,
    weight: Tensor,
    bias: Tensor | None = None,
    onto: Tensor | None = None,
    gelu: int | None = None,
    chained: bool = False,
) -> Tensor:
    """x weight^T + bias, for sizes that `fits` accepts.

    Args:
        x, bias: [rows, in], [out].
        weight: [out, in]; with gelu not None [2 out, in], of gate and up.
        onto: float32 [rows, out]: add the product to it, in place.
        gelu: Return act(gate) * up, with act SiLU (0), GELU by tanh (1) or exact (2).

    Returns:
        [rows, out]: `onto`, or a new tensor in weight's dtype.

    Raises:
        ValueError: A tensor is not contiguous.
    """
    rows, inputs = x.shape
    values, norm, eps = (x.x, x.weight, x.eps) if isinstance(x, Normed) else (x, x, 0.0)
    out = product_output(values, weight, gelu, onto)
    outputs = out.shape[1]
    weights = WEIGHTS_PER_PROGRAM if gelu is None else WEIGHTS_PER_PROGRAM // 2
    block = max(2, weights // triton.next_power_of_2(inputs))
    multiply_few_rows[(triton.cdiv(outputs, block),)](
        values, norm, weight, weight if bias is None else bias, out, outputs, eps,
        K=inputs, ROWS=rows, NORMED=isinstance(x, Normed), BIASED=bias is not None, ONTO=onto is not None,
        GATED=gelu is not None, GELU=gelu or 0,
        BLOCK=block, STEP=min(STEP, triton.next_power_of_2(inputs)), **pdl_launch_kwargs(chained),
    )  # fmt: skip
    return out
