"""Products of a few rows with a weight, at the speed of reading the weight: for decode steps of few streams.

A library's product, made for tiles of rows, leaves most of a device idle on a weight of a few MiB. Here a program
keeps its part of the weight in registers, and asks for it before there is anything to multiply: under programmatic
dependent launch (`chained`) it starts while the kernels before it are still at work, and waits for them only then.
Sums are formed in float32, in one order whatever the number of rows.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

GEMV_MAX_ROWS = 4
GEMV_MAX_INPUTS = 4096
"""Of a row: more of them would not fit the registers of a program."""
# Numbers of a weight that a program holds, and how many of an output it takes up at once.
HELD, STEP = 16_384, 1024


@triton.jit
def launch_dependents(CHAINED: tl.constexpr):
    """Let the next kernel of a chain start: from here on it may load what no kernel of the chain writes."""
    if CHAINED:
        gdc_launch_dependents()


@triton.jit
def wait_for_predecessors(CHAINED: tl.constexpr):
    """Wait for what all kernels before have stored. All of a chain have to, or the end of one says too little."""
    if CHAINED:
        gdc_wait()


@triton.jit
def multiply_few_rows(
    x, norm, weight, bias, out, outputs, eps,
    K: tl.constexpr, ROWS: tl.constexpr, NORMED: tl.constexpr, BIASED: tl.constexpr, ONTO: tl.constexpr,
    GATED: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """out [ROWS, outputs] = x [ROWS, K] weight.T + bias, of weight [outputs, K] and (where BIASED) bias [outputs].

    NORMED: of rms_norm(x) * norm in the place of x, rounded to weight's dtype; x and norm [K] float32. ONTO: added
    to what is in out. GATED: weight [2 outputs, K], out = act(x gate.T) * (x up.T), rounded as if both were stored
    between. A grid of (blocks of BLOCK outputs).
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
    """act(gate) * up, of gate in float32, act rounded to up's dtype in between."""
    if GELU:
        # tanh(z) = 2 sigmoid(2 z) - 1
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(2 * inner)
    else:
        gate = gate * tl.sigmoid(gate)
    gate = gate.to(up.dtype).to(tl.float32)
    return (gate * up.to(tl.float32)).to(up.dtype)


def pdl_launch_kwargs(chained: bool) -> dict[str, bool]:
    """How a kernel with `CHAINED` is launched. chained: all before it in its stream have ended, or wait."""
    return {"CHAINED": True, "launch_pdl": True} if chained else {"CHAINED": False}


def fits(rows: int, inputs: int) -> bool:
    """Whether `multiply` may be called."""
    return 0 < rows <= GEMV_MAX_ROWS and inputs <= GEMV_MAX_INPUTS


@dataclass(frozen=True)
class Normed:
    """rms_norm(x) * weight, left to the product that reads it: x float32 [rows, in], weight float32 [in]."""

    x: Tensor
    weight: Tensor
    eps: float

    @property
    def shape(self) -> torch.Size:
        return self.x.shape


def multiply(
    x: Tensor | Normed,
    weight: Tensor,
    bias: Tensor | None = None,
    onto: Tensor | None = None,
    gelu: bool | None = None,
    chained: bool = False,
) -> Tensor:
    """x [rows, in] with weight [out, in], for at most GEMV_MAX_ROWS rows of at most GEMV_MAX_INPUTS: [rows, out].

    onto: float32, added to in place instead. gelu: not None if weight is of gate and up, [2 out, in], with GELU or
    SiLU between. chained: see `pdl_launch_kwargs`. Raises ValueError where a tensor has gaps.
    """
    rows, inputs = x.shape
    outputs = len(weight) if gelu is None else len(weight) // 2
    out = torch.empty((rows, outputs), dtype=weight.dtype, device=weight.device) if onto is None else onto
    values, norm, eps = (x.x, x.weight, x.eps) if isinstance(x, Normed) else (x, x, 0.0)
    if not (values.is_contiguous() and weight.is_contiguous() and out.is_contiguous()):
        raise ValueError("products of few rows step through tensors without gaps")
    held = HELD if gelu is None else HELD // 2
    block = max(2, held // triton.next_power_of_2(inputs))
    multiply_few_rows[(triton.cdiv(outputs, block),)](
        values, norm, weight, weight if bias is None else bias, out, outputs, eps,
        K=inputs, ROWS=rows, NORMED=isinstance(x, Normed), BIASED=bias is not None, ONTO=onto is not None,
        GATED=gelu is not None, GELU=bool(gelu),
        BLOCK=block, STEP=min(STEP, triton.next_power_of_2(inputs)), **pdl_launch_kwargs(chained),
    )  # fmt: skip
    return out
