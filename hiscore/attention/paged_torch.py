"""Attention of single rows over pages, for the CPU: the same bits wherever the pages lie.

Each row is computed by itself, over a fresh copy of just the tokens that it sees, in ascending order. So its bits
depend on that set of tokens alone: not on other rows, on padding, or on where the set came from.
"""

import torch
from torch import Tensor


def working(x: Tensor) -> Tensor:
    """What is computed in float32, or in float64 if x is."""
    return x if x.dtype == torch.float64 else x.float()


def capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    return logits if soft_cap is None else torch.tanh(logits / soft_cap) * soft_cap


def paged_attention(
    q: Tensor,
    tokens: Tensor,
    page: int,
    pages: Tensor,
    places: Tensor,
    positions: Tensor,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    value_width: int | None = None,
) -> Tensor:
    """softmax(cap(q k^T * scale)) v over those tokens of the pages that a row sees.

    q: [R, heads, D]; tokens: [slots, C, H, D], a token's key and value, or (C = 1) a latent whose first
    value_width numbers are the value; pages: int32 [R, H, K], a stream's own pages, ascending, then -1; places:
    int32 [R, H, K], the pages of `tokens` that hold them; positions: int32 [R]. A row sees the tokens up to its
    position, within the window. Returns [R, heads, D or value_width], zeros for a row without pages.

    Raises:
        ValueError: heads of one row see different numbers of tokens.
    """
    kv_heads, width = tokens.shape[2], value_width or q.shape[2]
    out = q.new_zeros((*q.shape[:2], width))
    grouped = working(q).unflatten(1, (kv_heads, -1))
    offset = torch.arange(page)
    head = torch.arange(kv_heads)[:, None]
    for row, position in enumerate(positions.tolist()):
        at = (pages[row].long()[..., None] * page + offset).flatten(1)
        slots = (places[row].long()[..., None] * page + offset).flatten(1)
        seen = (at >= 0) & (at <= position)
        if window is not None:
            seen &= at > position - window
        counts = seen.sum(1)
        if (counts != counts[0]).any():
            raise ValueError(f"heads of row {row} see different numbers of tokens: {counts.tolist()}")
        if not counts[0]:
            continue
        kv = working(tokens[slots[seen].view(kv_heads, -1), :, head])  # [H, n, C, D]
        logits = capped(grouped[row] @ kv[:, :, 0].mT * scale, soft_cap)
        out[row] = (logits.softmax(-1) @ kv[:, :, -1, :width]).flatten(0, 1).to(q.dtype)
    return out
