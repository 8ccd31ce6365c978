"""Attention of single rows over pages, for the CPU: the same bits wherever the pages lie.

Each row is computed by itself, over a fresh copy of just the tokens that it sees, in the order of its list. So its
bits depend on that list alone: not on other rows, on padding, or on where the pages came from.
"""

import torch
from torch import Tensor

from hiscore import numerics
from hiscore.numerics import widen


def paged_attention(
    q: Tensor,
    tokens: Tensor,
    page: int,
    places: Tensor,
    counts: Tensor,
    positions: Tensor,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    value_width: int | None = None,
) -> Tensor:
    """softmax(cap(q k^T * scale)) v over the tokens of listed pages, up to a row's own.

    q: [R, heads, D]; tokens: [slots, C, H, D], a token's key and value, or (C = 1) a latent whose first
    value_width numbers are the value; places: int32 [R, H, K], pages of `tokens` in the order of what they hold,
    of which counts int32 [R, H] count; a list ends with the page of the row's position (positions: int32 [R]), or
    has pages of a single token. Only the last `window` tokens of a list are seen. Returns [R, heads, D or
    value_width], zeros for a row without pages.

    Raises:
        ValueError: heads of one row have lists of different lengths.
    """
    kv_heads, width = tokens.shape[2], value_width or q.shape[2]
    out = q.new_zeros((*q.shape[:2], width))
    grouped = widen(q).unflatten(1, (kv_heads, -1))
    head = torch.arange(kv_heads)[:, None]
    for row, (position, of_heads) in enumerate(zip(positions.tolist(), counts.tolist(), strict=True)):
        if len(set(of_heads)) > 1:
            raise ValueError(f"heads of row {row} have lists of different lengths: {of_heads}")
        if not of_heads[0]:
            continue
        seen = (of_heads[0] - 1) * page + position % page + 1
        slots = places[row, :, : of_heads[0], None].long() * page + torch.arange(page)
        slots = slots.flatten(1)[:, 0 if window is None else max(0, seen - window) : seen]
        kv = widen(tokens[slots, :, head])  # [H, n, C, D]
        logits = numerics.soft_cap(grouped[row] @ kv[:, :, 0].mT * scale, soft_cap)
        out[row] = (logits.softmax(-1) @ kv[:, :, -1, :width]).flatten(0, 1).to(q.dtype)
    return out
