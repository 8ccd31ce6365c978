"""x weight^T in int8, with a scale for each row of both.

Sums are exact in 32 bits, so the tile may be chosen by the number of rows: it changes no bit of a result.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from hiscore.kernels.gated_mlp import GROUP, Tile

SMALL = Tile(64, 128, 128, warps=4, stages=4, programs=2)
LARGE = Tile(128, 256, 128, warps=8, stages=3, programs=1)


def tile_for(rows: int, outputs: int, multiprocessors: int) -> Tile:
    """The large tile where it leaves as little of the device idle as the small one."""
    large, small = (tile.fill(rows, outputs, multiprocessors) for tile in (LARGE, SMALL))
    return LARGE if large >= small else SMALL


@triton.jit
def multiply_int8(
    x, x_scales, weight, scales, bias, out, rows, outputs, inputs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Grid: any.

    Args:
        x: Descriptor of int8 [rows, inputs].
        x_scales: float32 [rows].
        weight: Descriptor of int8 [outputs, inputs]. Beyond their edges both load zeros.
        scales: float32 [outputs].
        bias: [outputs], read under BIASED.
        out: Descriptor of [rows, outputs], written.
    """
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(outputs, OUTPUTS)
    for tile in range(tl.program_id(0), down * across, tl.num_programs(0)):
        group = tile // (across * GROUP) * GROUP
        high = tl.minimum(down - group, GROUP)
        within = tile - across * group
        first = (group + within % high) * ROWS
        column = within // high * OUTPUTS
        sums = tl.zeros([ROWS, OUTPUTS], tl.int32)
        for begin in range(0, inputs, INPUTS):
            sums = tl.dot(x.load([first, begin]), weight.load([column, begin]).T, sums, out_dtype=tl.int32)
        row, output = first + tl.arange(0, ROWS), column + tl.arange(0, OUTPUTS)
        of_row = tl.load(x_scales + row, mask=row < rows, other=0.0)
        of_output = tl.load(scales + output, mask=output < outputs, other=0.0)
        result = (sums.to(tl.float32) * of_row[:, None] * of_output[None, :]).to(out.dtype)
        if BIASED:
            # The product is rounded as if it had been stored.
            added = tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)
            result = (result.to(tl.float32) + added[None, :]).to(out.dtype)
        out.store([first, column], result)


def multiply(
    x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """x weight^T + bias.

    Args:
        x: int8 [rows, in].
        x_scales: float32 [rows, 1].
        weight: int8 [out, in]; both sizes multiples of 16.
        scales: float32 [out, 1].
        bias: [out].
        dtype: Of the result.

    Returns:
        [rows, out].
    """
    outputs = len(weight)
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    tile = tile_for(max(len(x), 1), outputs, multiprocessors)
    return multiply_by_tiles(x, x_scales, weight, scales, bias, dtype, tile, multiprocessors)


def multiply_by_tiles(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    tile: Tile,
    multiprocessors: int,
) -> Tensor:
    """`multiply` with a tile, on a device of so many multiprocessors."""
    (rows, inputs), outputs = x.shape, len(weight)
    out = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    if rows:
        multiply_int8[(min(tile.count(rows, outputs), tile.programs * multiprocessors),)](
            TensorDescriptor.from_tensor(x, [tile.rows, tile.inputs]), x_scales,
            TensorDescriptor.from_tensor(weight, [tile.outputs, tile.inputs]), scales,
            scales if bias is None else bias,
            TensorDescriptor.from_tensor(out, [tile.rows, tile.outputs]),
            rows, outputs, inputs,
            ROWS=tile.rows, OUTPUTS=tile.outputs, INPUTS=tile.inputs, GROUP=GROUP, BIASED=bias is not None,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out
