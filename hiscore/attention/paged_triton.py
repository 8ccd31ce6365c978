"""Attention of single rows over pages by our kernel; see `hiscore.kernels.paged_attention` for how it works."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from hiscore.kernels import gemv
from hiscore.kernels.paged_attention import attend_splits, combine_splits

# Tokens of a split. Another number gives other bits.
SPLIT = 256
# Splits that are combined at once, likewise.
COMBINED = 32


@dataclass(frozen=True)
class Launch:
    """A launch: M query heads and N tokens at a time."""

    m: int
    n: int
    warps: int
    stages: int


def choose_launch(group: int, value_width: int, dtype: torch.dtype) -> Launch:
    """Block sizes by what fits a multiprocessor's registers and shared memory, as the compiler reports it."""
    if value_width > 256:
        return Launch(32, 32, 8, 2) if dtype != torch.float32 else Launch(16, 16, 8, 1)
    m = min(64, max(16, triton.next_power_of_2(group)))
    if dtype == torch.float32:
        return Launch(m, 16, 4, 2)
    return Launch(m, 128, 8, 2) if value_width <= 128 else Launch(m, 32, 4, 2)


def paged_attention(
    q: Tensor,
    tokens: Tensor,
    page: int,
    places: Tensor,
    counts: Tensor,
    slots: Tensor,
    positions: Tensor,
    max_length: int,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    value_width: int | None = None,
    by_slot: bool = False,
    chained: bool = False,
) -> Tensor:
    """softmax(cap(q k^T * scale)) v over the tokens of listed pages, up to a row's own.

    q: [R, heads, D]; tokens: [slots, C, H, D], a token's key and value, or (C = 1) a latent whose first
    value_width numbers are the value; places: int32 [R, H, K], pages of `tokens`, or by_slot a table [streams, K];
    counts: int32 [R, H], or [R, 1] for all heads alike; slots, positions: int32 [R], -1 for padding. A list ends
    with the page of the row's position, or has pages of a single token, and is no longer than max_length tokens.
    Only its last `window` tokens are seen. Returns [R, heads, D or value_width]; a row without pages, and padding,
    is left as it comes from memory. chained: see `gemv.pdl_launch_kwargs`; then lists by_slot are of all pages.
    """
    (count, heads, width), (_, parts, kv_heads, _) = q.shape, tokens.shape
    ahead = chained and by_slot and parts == 2
    value = value_width or width
    splits = triton.cdiv(max_length, SPLIT)
    if window is not None:
        splits = min(splits, triton.cdiv(window, SPLIT) + 1)
    partial = torch.empty((count, heads, splits, value), dtype=torch.float32, device=q.device)
    stats = torch.empty((count, heads, splits, 2), dtype=torch.float32, device=q.device)
    out = torch.empty((count, heads, value), dtype=q.dtype, device=q.device)
    by_slot_row_head = (places.stride(0), 0, 0) if by_slot else (0, *places.stride()[:2])
    counts_by = (counts.stride(0), counts.stride(1) if counts.shape[1] > 1 else 0)
    group, tail = heads // kv_heads, width - value
    launch = choose_launch(group, value, q.dtype)
    attend_splits[(count * kv_heads * triton.cdiv(group, launch.m), splits)](
        q, tokens, places, counts, slots, positions, partial, stats,
        scale, soft_cap or 0.0, q.stride(0), splits, *by_slot_row_head, *counts_by,
        HEADS=heads, KV_HEADS=kv_heads, PARTS=parts,
        WIDTH=width, VALUE=value, PADDED_VALUE=max(16, triton.next_power_of_2(value)),
        PADDED_TAIL=max(16, triton.next_power_of_2(tail)) if tail else 0, PAGE=page,
        WINDOW=window or 0, CAPPED=soft_cap is not None,
        M=launch.m, N=launch.n, SPLIT=SPLIT,
        # Triton's default for float32 would be TF32, with 10 bits of mantissa.
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        AHEAD=ahead, num_warps=launch.warps, num_stages=launch.stages, **gemv.pdl_launch_kwargs(chained),
    )  # fmt: skip
    block = min(128, triton.next_power_of_2(value))
    combine_splits[(count * heads, triton.cdiv(value, block))](
        partial, stats, counts, slots, positions, out, splits, *counts_by,
        HEADS=heads, KV_HEADS=kv_heads, VALUE=value, PAGE=page, WINDOW=window or 0,
        SPLIT=SPLIT, SPLITS=COMBINED, BLOCK=block, AHEAD=ahead, **gemv.pdl_launch_kwargs(chained),
    )  # fmt: skip
    return out
