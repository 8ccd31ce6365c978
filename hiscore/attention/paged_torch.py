"""Paged attention of single rows, for the CPU: the same bits wherever the pages are.

Each row is computed by itself over a fresh copy of the tokens that it sees, in the order of its list. So its bits
depend on these tokens alone: not on other rows, on padding, or on where its pages came from.
"""

from torch import Tensor

from hiscore.device import numerics
from hiscore.device.numerics import widen


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
    """Compute `paged_triton.paged_attention` in PyTorch.

    Returns:
        [R, heads, value_dim or head_dim]; zeros for a row without pages.

    Raises:
        ValueError: Heads of one row have lists of different lengths.
    """
    kv_heads, value_dim = tokens.shape[2], value_dim or q.shape[2]
    out = q.new_zeros((*q.shape[:2], value_dim))
    grouped = widen(q).unflatten(1, (kv_heads, -1))
    head_sinks = None if sinks is None else sinks.view(kv_heads, -1, 1)
    in_pages = tokens.unflatten(0, (-1, page_size))
    for row, (position, of_heads) in enumerate(zip(positions.tolist(), counts.tolist(), strict=True)):
        if len(set(of_heads)) > 1:
            raise ValueError(f"heads of row {row} have lists of different lengths: {of_heads}")
        if not of_heads[0]:
            continue
        seen = (of_heads[0] - 1) * page_size + position % page_size + 1
        page, first = divmod(0 if window is None else max(0, seen - window), page_size)
        kv = widen(_gathered(in_pages, pages[row, :, page : of_heads[0]])).flatten(0, 1)
        kv = kv[first : seen - page * page_size]
        logits = numerics.soft_cap(grouped[row] @ kv[:, 0].permute(1, 2, 0) * scale, soft_cap)
        values = kv[:, -1, :, :value_dim].transpose(0, 1)
        out[row] = (numerics.softmax(logits, head_sinks) @ values).flatten(0, 1).to(q.dtype)
    return out


def _gathered(in_pages: Tensor, pages: Tensor) -> Tensor:
    """Copies of listed pages, laid out alike whether the heads share a list or not."""
    if bool((pages == pages[:1]).all()):
        return in_pages.index_select(0, pages[0])
    out = in_pages.new_empty((pages.shape[1], *in_pages.shape[1:]))
    for head, of_head in enumerate(pages.long()):
        out[..., head, :] = in_pages[of_head, :, :, head]
    return out
