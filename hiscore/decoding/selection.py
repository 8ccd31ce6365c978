"""Which pages a row attends to: the interface of selectors, and what they share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hiscore.decoding.cache import Cache, DecodeRows


@dataclass(frozen=True)
class Selection:
    """Pages of a step in one layer, for R rows, H heads and at most K pages.

    pages: int32 [R, H, K], a stream's own pages, ascending, then -1; counts: int32 [R, H], how many there are;
    mass: float32 [R, H], the share of attention that they are thought to capture. A padding row has none.
    All heads of a row have as many tokens up to the row's position.
    """

    pages: Tensor
    counts: Tensor
    mass: Tensor


class Selector(Protocol):
    """Chooses pages in the sparse layers by an index that it keeps there."""

    def write(self, layer: int, keys: Tensor, home_slots: Tensor) -> None:
        """Take new tokens' keys [n, H, D] into the index, int32 [n] slots of the host's pages, -1 for none.

        A page's first token starts it afresh, and its tokens come in order.
        """

    def select(self, layer: int, q: Tensor, rows: DecodeRows) -> Selection:
        """Choose for rotated queries [R, heads, D]; streams marked `full` get everything."""
        ...


def everything(rows: DecodeRows, heads: int, page: int, window: int | None = None) -> Selection:
    """Select all pages of all rows, or those that a row's window reaches."""
    last = rows.positions.long() // page
    first = (
        torch.zeros_like(last)
        if window is None
        else (rows.positions - window + 1).clamp(min=0).long() // page
    )
    counts = torch.where(rows.valid, last - first + 1, 0)
    each = torch.arange(int(counts.max()) if len(counts) else 0, device=counts.device)
    pages = torch.where(each < counts[:, None], first[:, None] + each, -1)
    shape = (len(last), heads)
    return Selection(
        pages.int()[:, None].expand(*shape, -1),
        counts.int()[:, None].expand(shape),
        rows.valid.float()[:, None].expand(shape),
    )


def choose(
    cache: Cache,
    rows: DecodeRows,
    forced: Callable[[Tensor, Tensor], Tensor],
    score: Callable[[int, Tensor], Tensor],
) -> Selection:
    """Choose `CacheShape.top_pages` pages for each row and head, or all for a stream marked `full`.

    forced: from pages int64 [N] and the rows' newest int64 [R, 1] to bool [R, N]; score: from a row and its pages
    of the host (int64 [n]) to [H, n]. Rows that get everything are not scored.
    """
    shape = cache.shape
    newest = rows.positions.long() // shape.page
    lengths = torch.where(rows.valid, newest + 1, 0)
    top = torch.where(cache.full[rows.streams], lengths, lengths.clamp(max=shape.top_pages))
    most = int(lengths.max()) if len(lengths) else 0
    scores = torch.zeros((len(lengths), shape.heads, most), dtype=torch.float64)
    # Row by row, each in its own length: so a row's scores have the same bits whatever other rows there are.
    for row, (length, chosen) in enumerate(zip(lengths.tolist(), top.tolist(), strict=True)):
        if chosen < length:
            scores[row, :, :length] = score(row, cache.host_table[rows.slots[row], :length].long())
        else:
            scores[row, :, :length] = 1 / max(1, length)
    width = max([shape.top_pages, *top.tolist()])
    return top_pages(scores, lengths, forced(torch.arange(most), newest[:, None]), top, width)


def top_pages(scores: Tensor, lengths: Tensor, forced: Tensor, top: Tensor, width: int) -> Selection:
    """Choose the best pages of each row and head, ties to the lower page.

    scores: [R, H, N], not negative, each row's summing up to 1; lengths: int64 [R], pages that a row has; forced:
    bool [R, N], what is chosen in any case; top: int64 [R], how many a row gets, the forced ones among them;
    width: K, at least the greatest of what rows get.
    """
    rows, heads, most = scores.shape
    each = torch.arange(most, device=scores.device)
    exists = (each < lengths[:, None])[:, None]
    # No score of a page is above 1, and every page that exists comes before those that do not.
    rank_by = scores.masked_fill(forced[:, None], 2.0).masked_fill(~exists, -1.0)
    order = rank_by.sort(dim=-1, descending=True, stable=True).indices
    counts = torch.minimum(top, lengths)[:, None].expand(rows, heads)
    kept = each < counts[..., None]
    mass = torch.where(kept, scores.gather(-1, order), 0.0).sum(-1)
    pages = torch.full((rows, heads, max(width, most)), most, device=scores.device)
    pages[..., :most] = torch.where(kept, order, most)
    pages = pages.sort(dim=-1).values[..., :width]
    return Selection(torch.where(pages < most, pages, -1).int(), counts.int(), mass.float())
