"""act(x gate.T) * (x up.T) for many rows in one kernel.

A library writes both products to memory for another kernel to read. Here they meet in registers: a program forms a
tile of either, from the same rows of x, and stores what the activation leaves of them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from hiscore.kernels.gemv import gated

# Tiles of rows that follow each other on one column of weights, which the cache keeps meanwhile.
GROUP = 16


@dataclass(frozen=True)
class Tile:
    """What a program forms at once, `inputs` of the sums at a time, and how it is launched."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    programs: int
    """On a multiprocessor."""

    def count(self, rows: int, outputs: int) -> int:
        """How many there are."""
        return int(triton.cdiv(rows, self.rows) * triton.cdiv(outputs, self.outputs))

    def fill(self, rows: int, outputs: int, multiprocessors: int) -> float:
        """The share of its time in which a device has a tile for every program."""
        at_once, tiles = self.programs * multiprocessors, self.count(rows, outputs)
        return float(tiles / (at_once * triton.cdiv(tiles, at_once)))


SMALL = Tile(64, 64, 64, warps=4, stages=4, programs=2)
MEDIUM = Tile(128, 64, 64, warps=4, stages=3, programs=2)
LARGE = Tile(128, 128, 64, warps=8, stages=3, programs=1)


def tile_for(rows: int, inputs: int, outputs: int, multiprocessors: int) -> Tile | None:
    """The tile that was faster than a library on an H200 (perf/results/h200/gated_product.json), or None.

    Longer sums leave less to gain, and a library's last tiles leave less of a device idle.
    """
    if not rows or inputs % 8 or outputs % 8:  # of 8: else rows begin where the device fetches no tiles from
        return None
    if rows >= 12_288 and 1024 <= inputs <= 2560:
        return LARGE
    if rows <= 512:
        tile, most_inputs, least = SMALL, 1024, 0.9
    else:
        tile, most_inputs, least = MEDIUM, 2048, 0.8 if inputs <= 1024 else 0.9
    return tile if inputs <= most_inputs and tile.fill(rows, outputs, multiprocessors) > least else None


@triton.jit
def multiply_gated(
    x, weight, out, rows, outputs, inputs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """out = act(x gate.T) * (x up.T), rounded as if both products were stored.

    Descriptors of x [rows, inputs], weight [2 outputs, inputs] (gate, then up) and out [rows, outputs]: what they
    give beyond an edge of x or out does not matter, or is zero. A grid of any number of programs.
    """
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(outputs, OUTPUTS)
    for tile in range(tl.program_id(0), down * across, tl.num_programs(0)):
        group = tile // (across * GROUP) * GROUP
        high = tl.minimum(down - group, GROUP)
        within = tile - across * group
        row = (group + within % high) * ROWS
        column = within // high * OUTPUTS
        gate = tl.zeros([ROWS, OUTPUTS], tl.float32)
        up = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for begin in range(0, inputs, INPUTS):
            part = x.load([row, begin])
            gate = tl.dot(part, weight.load([column, begin]).T, gate)
            up = tl.dot(part, weight.load([outputs + column, begin]).T, up)
        rounded = gate.to(out.dtype).to(tl.float32)
        out.store([row, column], gated(rounded, up.to(out.dtype), GELU))


def multiply(x: Tensor, weight: Tensor, gelu: bool, tile: Tile, multiprocessors: int) -> Tensor:
    """x [rows, in], weight [2 out, in] (gate, then up), 16-bit: [rows, out], with GELU or SiLU between."""
    (rows, inputs), outputs = x.shape, len(weight) // 2
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    multiply_gated[(min(tile.count(rows, outputs), tile.programs * multiprocessors),)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.inputs]),
        TensorDescriptor.from_tensor(weight, [tile.outputs, tile.inputs]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.outputs]),
        rows, outputs, inputs,
        ROWS=tile.rows, OUTPUTS=tile.outputs, INPUTS=tile.inputs, GROUP=GROUP, GELU=gelu,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
