"""`moe` on CUDA, by the kernels of `experts`: nothing waits for the host, no shape depends on data."""

import torch
import triton
from torch import Tensor

from hiscore.kernels import experts as kernels
from hiscore.kernels.gated_mlp import Tile
from hiscore.kernels.scaled_fp8 import multiply_scaled_experts
from hiscore.layers.moe import add_shared, route
from hiscore.layers.scaled_fp8_triton import quantise
from hiscore.layers.weights import Experts, Scales

ACTIVATIONS = {
    "silu": kernels.SILU.value,
    "gelu_pytorch_tanh": kernels.GELU.value,
    "clamped_swiglu": kernels.CLAMPED_SWIGLU.value,
}
SORT_BLOCK = 1024


STEP = Tile(16, 64, 64, warps=4, stages=4)
"""Tile of a decode step: few pairs an expert."""
PREFILL = Tile(64, 64, 64, warps=4, stages=4)
LARGE_PREFILL = Tile(128, 128, 64, warps=8, stages=3)
"""Tile of a prefill with many pairs an expert. Both sum in one order, so a row's bits do not depend on its batch
(perf/results/h200/experts_tiles.json)."""
MANY = 64
"""Pairs an expert, on average, from which the large tile was faster on an H200."""
FLOAT32 = Tile(16, 32, 32, warps=4, stages=2)
FP8_STEP = Tile(16, 64, 128, warps=4, stages=4)
FP8_PREFILL = Tile(64, 128, 128, warps=8, stages=3)
FP8_LARGE_PREFILL = Tile(128, 64, 128, warps=8, stages=3)
"""Tile that has not been timed yet, like the two below."""


def moe(w: Experts, h: Tensor, step: bool = False) -> Tensor:
    """Routed and shared experts, [T, hidden] to [T, hidden]; a decode step has tiles of its own."""
    logits = router_logits(w, h)
    chosen, weights = route(w, logits)
    each = expert_outputs(w, h, chosen, step)
    out = torch.empty_like(h)
    tokens, width = h.shape
    block = min(1024, triton.next_power_of_2(width))
    if tokens:
        kernels.add_experts[(tokens, triton.cdiv(width, block))](
            each, weights.contiguous(), out, width, PER_TOKEN=chosen.shape[1], BLOCK=block
        )
    return add_shared(w, out, h, logits)


def router_logits(w: Experts, h: Tensor) -> Tensor:
    (tokens, width), count = h.shape, len(w.router)
    out = torch.empty((tokens, count), dtype=torch.float32, device=h.device)
    biased = w.router_bias is not None
    if tokens:
        kernels.router_logits[(triton.cdiv(tokens, 16), triton.cdiv(count, 64))](
            h, w.router, w.router_bias if biased else w.router, out, tokens, width, count,
            M=16, N=64, K=64, BIASED=biased,
            # Three TF32 products each: as exact as float32 here, several times faster.
            PRECISION="ieee" if h.dtype == torch.float32 else "tf32x3", num_warps=4,
        )  # fmt: skip
    return out


def expert_outputs(w: Experts, h: Tensor, chosen: Tensor, step: bool = False) -> Tensor:
    """The output of each token's experts, [T, per_token, hidden]; zeros for experts that other ranks hold."""
    (count, hidden, width), pairs = w.down.shape, chosen.numel()
    tile = _tile(w, h.dtype, step, pairs >= MANY * count)
    inner = torch.empty((pairs, width), dtype=h.dtype, device=h.device)
    # Of pairs whose expert another rank holds, no output is written.
    new = torch.zeros if w.is_part else torch.empty
    out = new((*chosen.shape, hidden), dtype=h.dtype, device=h.device)
    if pairs:
        order, tiles = _sorted_pairs(w, chosen, tile)
        launch = order, tiles, tile, chosen.shape[1]
        _multiply(h, w.gate_up, w.gate_up_bias, w.gate_up_scales, inner, *launch, w.activation)
        _multiply(inner, w.down, w.down_bias, w.down_scales, out, *launch, None)
    return out


def _tile(w: Experts, dtype: torch.dtype, step: bool, many: bool) -> Tile:
    if w.gate_up_scales is not None:
        return FP8_STEP if step else FP8_LARGE_PREFILL if many else FP8_PREFILL
    if dtype == torch.float32:
        return FLOAT32
    return STEP if step else LARGE_PREFILL if many else PREFILL


def _sorted_pairs(w: Experts, chosen: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Sort pairs of a token and a held expert, of which there must be some; see `kernels.experts.sort_pairs`."""
    count, pairs = len(w.down), chosen.numel()
    order = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    # Of pairs whose expert another rank holds, no tile is written.
    new = torch.zeros if w.is_part else torch.empty
    tiles = new((pairs // tile.rows + count, 3), dtype=torch.int32, device=chosen.device)
    if w.is_part:
        chosen = chosen - w.first
        chosen = torch.where((chosen >= 0) & (chosen < count), chosen, count)
    kernels.sort_pairs[(count,)](chosen.contiguous(), order, tiles, pairs, M=tile.rows, BLOCK=SORT_BLOCK)
    return order, tiles


def _multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scales: Scales | None,
    out: Tensor,
    order: Tensor,
    tiles: Tensor,
    tile: Tile,
    per_token: int,
    activation: str | None,
) -> None:
    inputs, outputs, gated = x.shape[1], out.shape[-1], ACTIVATIONS[activation] if activation else 0
    if scales is not None:
        # Rows of pairs whose expert another rank holds hold anything, and are not read again.
        rounded, of_rows = quantise(x, scales.columns, scales.powers_of_two)
        _, row_blocks, blocks = scales.of_blocks.shape
        multiply_scaled_experts[(len(tiles), triton.cdiv(outputs, tile.outputs))](
            rounded, of_rows, weight, scales.of_blocks, out, order, tiles, inputs, outputs, blocks, row_blocks,
            per_token, M=tile.rows, N=tile.outputs, K=scales.columns, R=scales.rows, GATED=gated,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return
    kernels.multiply_experts[(len(tiles), triton.cdiv(outputs, tile.outputs))](
        x, weight, weight if bias is None else bias, out, order, tiles, inputs, outputs, per_token,
        M=tile.rows, N=tile.outputs, K=tile.inputs, GATED=gated, BIASED=bias is not None,
        # Triton's default for float32 would be TF32, with 10 bits of mantissa.
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
