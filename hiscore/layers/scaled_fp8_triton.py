"""`scaled_fp8` on CUDA, by the kernels of `hiscore.kernels.scaled_fp8`."""

import torch
import triton
from torch import Tensor

from hiscore.kernels import scaled_fp8 as kernels
from hiscore.kernels.gated_mlp import Tile
from hiscore.layers.fp8 import FP8
from hiscore.layers.weights import Scales

STEP = Tile(16, 32, 128, warps=4, stages=4)
"""Tile of few rows: enough tiles of outputs for all multiprocessors."""
STEP_ROWS = 16
PREFILL = Tile(128, 128, 128, warps=8, stages=3)
BLOCKS = 8


def multiply(x: Tensor, values: Tensor, scales: Scales) -> Tensor:
    (rows, inputs), outputs = x.shape, len(values)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if not rows:
        return out
    rounded, of_rows = quantise(x, scales.columns, scales.powers_of_two)
    tile = STEP if rows <= STEP_ROWS else PREFILL
    kernels.multiply_scaled[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows))](
        rounded, of_rows, values, scales.of_blocks, out, rows, outputs, inputs, scales.of_blocks.shape[-1],
        M=tile.rows, N=tile.outputs, K=scales.columns, R=scales.rows,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def quantise(x: Tensor, columns: int, powers_of_two: bool) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    blocks = triton.cdiv(width, columns)
    out = torch.empty((rows, width), dtype=FP8, device=x.device)
    scales = torch.empty((rows, blocks), dtype=torch.float32, device=x.device)
    if rows:
        kernels.quantise_blocks[(rows, triton.cdiv(blocks, BLOCKS))](
            x.contiguous(), out, scales, width, blocks, K=columns, BLOCKS=BLOCKS, POWERS_OF_TWO=powers_of_two
        )
    return out, scales
