"""act(x gate^T) * (x up^T) for many rows in one kernel.

With cuBLAS both products go through memory. Here a program computes the same tile of both from the same rows of x
and stores only the result of the activation.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from hiscore.kernels.gemv import gated

GROUP = 16
"""Row tiles that are computed after each other with the same columns of the weight, which stay in the L2 cache."""


@dataclass(frozen=True)
class Tile:
    """Shape of a tile, and its launch."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    programs: int = 1
    """Per multiprocessor, where programs stay there for several tiles."""

    def count(self, rows: int, outputs: int) -> int:
        return int(triton.cdiv(rows, self.rows) * triton.cdiv(outputs, self.outputs))

    def fill(self, rows: int, outputs: int, multiprocessors: int) -> float:
        """The share of program slots that have a tile, over all waves."""
        at_once, tiles = self.programs * multiprocessors, self.count(rows, outputs)
        return float(tiles / (at_once * triton.cdiv(tiles, at_once)))


SMALL = Tile(64, 64, 64, warps=4, stages=4, programs=2)
MEDIUM = Tile(128, 64, 64, warps=4, stages=3, programs=2)
LARGE = Tile(128, 128, 64, warps=8, stages=3, programs=1)


def tile_for(rows: int, inputs: int, outputs: int, multiprocessors: int) -> Tile | None:
    """The tile with which the kernel was faster than cuBLAS and the activation, or None where it was slower.

    `outputs` are the columns of each of gate and up. At a GPU's power limit a tile's time alone can mislead: time
    whole forwards before more rows get another tile.

    Source: perf/results/h200/gated_product.json, perf/results/h100/gated_product.txt,
    perf/results/h200/gated_tiles.txt.
    """
    if not rows or inputs % 8 or outputs % 8:  # tensor descriptors need rows aligned to 16 bytes
        return None
    many = 1_024 if inputs > 1024 else 8_192
    if inputs >= 1024 and rows >= many:
        tile, most_inputs, least = LARGE, 4096, 0.9
    elif rows <= 512:
        tile, most_inputs, least = SMALL, 1024, 0.9
    else:
        tile, most_inputs, least = MEDIUM, 2048, 0.8 if inputs <= 1024 else 0.9
    return tile if inputs <= most_inputs and tile.fill(rows, outputs, multiprocessors) > least else None


@triton.jit
def multiply_gated(
    x, weight, out, rows, outputs, inputs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """Set out = act(x gate^T) * (x up^T), with both products rounded as if they had been stored. Grid: any.

    All three are descriptors, which load zeros beyond the edges; weight is [2, outputs, inputs], gate first.
    """
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(outputs, OUTPUTS)
    # Flattened into one with the loop over inputs, which then loads for the next tile while it stores a tile.
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        group = tile // (across * GROUP) * GROUP
        high = tl.minimum(down - group, GROUP)
        within = tile - across * group
        row = (group + within % high) * ROWS
        column = within // high * OUTPUTS
        # Both products at once: the tensor cores read a part of x once, not twice.
        sums = tl.zeros([ROWS, 2 * OUTPUTS], tl.float32)
        for begin in range(0, inputs, INPUTS):
            both = weight.load([0, column, begin]).reshape(2 * OUTPUTS, INPUTS)
            sums = tl.dot(x.load([row, begin]), both.T, sums)
        gate, up = tl.split(sums.to(out.dtype).reshape(ROWS, 2, OUTPUTS).permute(0, 2, 1))
        out.store([row, column], gated(gate.to(tl.float32), up, GELU))


def multiply(x: Tensor, weight: Tensor, gelu: int, tile: Tile, multiprocessors: int) -> Tensor:
    """Return act(x gate^T) * (x up^T) in 16 bits: x [rows, in], weight [2 out, in], gate first."""
    (rows, inputs), outputs = x.shape, len(weight) // 2
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    multiply_gated[(min(tile.count(rows, outputs), tile.programs * multiprocessors),)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.inputs]),
        TensorDescriptor.from_tensor(weight.unflatten(0, (2, outputs)), [2, tile.outputs, tile.inputs]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.outputs]),
        rows, outputs, inputs,
        ROWS=tile.rows, OUTPUTS=tile.outputs, INPUTS=tile.inputs, GROUP=GROUP, GELU=gelu,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
