"""Paged attention of single rows, for the CPU: the same bits wherever the pages are.

Each row is computed by itself over a fresh copy of the tokens that it sees, in the order of its list. So its bits
depend on these tokens alone: not on other rows, on padding, or on where its pages came from.
"""

import torch
from torch import Tensor

from hiscore import numerics
from hiscore.numerics import widen


def paged_attention(
    q: Tensor,
    tokens: Tensor,
    page_size: int,
    pages: Tensor,
    counts: Tensor,
    positions: Tensor,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    value_dim: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """softmax(cap(q k^T * scale)) v over the tokens of listed pages, up to a row's position.

    Args:
        q: [R, heads, head_dim].
        tokens: [slots, C, kv_heads, head_dim]: a key and a value (C = 2) or a latent (C = 1).
        page_size: Tokens per page.
        pages: int32 [R, kv_heads, K], pages of `tokens`; a list's last page contains the row's position.
        counts: int32 [R, kv_heads], pages per list; 0 for padding.
        positions: int32 [R].
        scale: Factor of the logits.
        soft_cap: See `numerics.soft_cap`.
        window: Attend only to this many of the last tokens of a list; None: to all.
        value_dim: Leading channels of a latent that are its value.
        sinks: float32 [heads], see `AttentionShape`.

    Returns:
        [R, heads, value_dim or head_dim]; zeros for a row without pages.

    Raises:
        ValueError: Heads of one row have lists of different lengths.
    """
    kv_heads, value_dim = tokens.shape[2], value_dim or q.shape[2]
    out = q.new_zeros((*q.shape[:2], value_dim))
    grouped = widen(q).unflatten(1, (kv_heads, -1))
    head = torch.arange(kv_heads)[:, None]
    head_sinks = None if sinks is None else sinks.view(kv_heads, -1, 1)
    for row, (position, of_heads) in enumerate(zip(positions.tolist(), counts.tolist(), strict=True)):
        if len(set(of_heads)) > 1:
            raise ValueError(f"heads of row {row} have lists of different lengths: {of_heads}")
        if not of_heads[0]:
            continue
        seen = (of_heads[0] - 1) * page_size + position % page_size + 1
        slots = pages[row, :, : of_heads[0], None].long() * page_size + torch.arange(page_size)
        slots = slots.flatten(1)[:, 0 if window is None else max(0, seen - window) : seen]
        kv = widen(tokens[slots, :, head])  # [H, n, C, D]
        logits = numerics.soft_cap(grouped[row] @ kv[:, :, 0].mT * scale, soft_cap)
        out[row] = (numerics.softmax(logits, head_sinks) @ kv[:, :, -1, :value_dim]).flatten(0, 1).to(q.dtype)
    return out
