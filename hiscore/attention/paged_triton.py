"""Paged attention of single rows, for CUDA devices: launches the kernels of `hiscore.kernels.paged_attention`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from hiscore.kernels import gemv
from hiscore.kernels.dot_size import dot_size
from hiscore.kernels.paged_attention import (
    EVERY_SPLIT,
    PENDING_SPLITS,
    PRESENT_SPLITS,
    attend_splits,
    combine_splits,
)

# Tokens per split, and splits combined at once. Other numbers give other bits.
SPLIT = 256
COMBINED = 32


@dataclass(frozen=True)
class SplitLaunch:
    """Block sizes of a launch: m query heads and n tokens at a time."""

    m: int
    n: int
    warps: int
    stages: int


def choose_launch(group: int, value_dim: int, dtype: torch.dtype) -> SplitLaunch:
    """Block sizes that fit a multiprocessor's registers and shared memory, as the compiler reports them."""
    if value_dim > 256:
        return SplitLaunch(32, 32, 8, 2) if dtype != torch.float32 else SplitLaunch(16, 16, 8, 1)
    m = min(64, dot_size(group))
    if dtype == torch.float32:
        return SplitLaunch(m, 16, 4, 2)
    return SplitLaunch(m, 64, 4, 2) if value_dim <= 128 else SplitLaunch(m, 32, 4, 2)


def paged_attention(
    q: Tensor,
    tokens: Tensor,
    page_size: int,
    pages: Tensor,
    counts: Tensor,
    seq_indices: Tensor,
    positions: Tensor,
    max_tokens: int,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    value_dim: int | None = None,
    sinks: Tensor | None = None,
    by_sequence: bool = False,
    chained: bool = False,
    wait: Callable[[], None] | None = None,
) -> Tensor:
    """softmax(cap(q k^T * scale)) v over the tokens of listed pages, up to a row's position.

    The result is [R, heads, value_dim]; rows without pages, padding included, are not written.

    Args:
        q: [R, heads, head_dim].
        tokens: [slots, C, kv_heads, head_dim]: a key and a value (C = 2) or a latent (C = 1).
        pages: int32 [R, kv_heads, K], pages of `tokens`; a list's last page contains the row's position.
            by_sequence: a block table [max_sequences, K].
        counts: int32 [R, kv_heads], pages per list, 0 for padding; [R, 1] where all heads have the same.
        seq_indices, positions: int32 [R], -1 and 0 for padding.
        max_tokens: Tokens of the longest list; sets the grid.
        window: Attend only to this many of the last tokens of a list; None: to all.
        value_dim: Leading channels of a latent that are its value; None: all of head_dim.
        sinks: float32 [heads], see `AttentionShape`.
        chained: See `gemv.pdl_launch_kwargs`; a block table then lists every page of a sequence.
        wait: Called before pages that are listed as ~page are read; None: there are none. The bits are the same.
    """
    (rows, heads, head_dim), (_, parts, kv_heads, _) = q.shape, tokens.shape
    ahead = chained and by_sequence and parts == 2
    value = value_dim or head_dim
    splits = triton.cdiv(max_tokens, SPLIT)
    if window is not None:
        splits = min(splits, triton.cdiv(window, SPLIT) + 1)
    partial = torch.empty((rows, heads, splits, value), dtype=torch.float32, device=q.device)
    stats = torch.empty((rows, heads, splits, 2), dtype=torch.float32, device=q.device)
    out = torch.empty((rows, heads, value), dtype=q.dtype, device=q.device)
    by_sequence_row_head = (pages.stride(0), 0, 0) if by_sequence else (0, *pages.stride()[:2])
    counts_by = (counts.stride(0), counts.stride(1) if counts.shape[1] > 1 else 0)
    group, tail = heads // kv_heads, head_dim - value
    launch = choose_launch(group, value, q.dtype)

    def attend(which: int) -> None:
        attend_splits[(rows * kv_heads * triton.cdiv(group, launch.m), splits)](
            q, tokens, pages, counts, seq_indices, positions, partial, stats,
            scale, soft_cap or 0.0, q.stride(0), splits, *by_sequence_row_head, *counts_by,
            HEADS=heads, KV_HEADS=kv_heads, PARTS=parts,
            HEAD_DIM=head_dim, VALUE=value, PADDED_VALUE=dot_size(value),
            PADDED_TAIL=dot_size(tail) if tail else 0, PAGE=page_size,
            WINDOW=window or 0, CAPPED=soft_cap is not None,
            M=launch.m, N=launch.n, SPLIT=SPLIT,
            # Triton's default for float32 would be TF32, with 10 bits of mantissa.
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            AHEAD=ahead, WHICH=which,
            num_warps=launch.warps, num_stages=launch.stages, **gemv.pdl_launch_kwargs(chained),
        )  # fmt: skip

    if wait is None:
        attend(EVERY_SPLIT.value)
    else:
        attend(PRESENT_SPLITS.value)
        wait()
        attend(PENDING_SPLITS.value)
    block = min(128, triton.next_power_of_2(value))
    combine_splits[(rows * heads, triton.cdiv(value, block))](
        partial, stats, counts, seq_indices, positions, stats if sinks is None else sinks, out, splits, *counts_by,
        HEADS=heads, KV_HEADS=kv_heads, VALUE=value, PAGE=page_size, WINDOW=window or 0,
        SPLIT=SPLIT, SPLITS=COMBINED, BLOCK=block, SINKS=sinks is not None, AHEAD=ahead,
        **gemv.pdl_launch_kwargs(chained),
    )  # fmt: skip
    return out
