"""Which pages a row attends to: the interface of selectors, and what they share."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hiscore import numerics
from hiscore.decoding.kv_cache.cache import KVCache, StepBatch


@dataclass(frozen=True)
class Selection:
    """Pages of a step in one layer, for R rows, H heads and at most K pages.

    pages: int32 [R, H, K], a stream's own pages, ascending, then -1; counts: int32 [R, H], how many there are, the
    same for all heads of a row; mass: float32 [R, H], the share of attention that they are thought to capture. A
    padding row has none.
    """

    pages: Tensor
    counts: Tensor
    mass: Tensor


class Selector(Protocol):
    """Scores the pages of rows in the sparse layers, by an index that it keeps there."""

    def write(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Take new tokens' keys [n, H, D] into the index, int32 [n] slots of the host's pages, -1 for none.

        A page's first token starts it afresh, and its tokens come in order.
        """

    def scores(self, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
        """Score pages for rotated queries [R, heads, D]: [R, heads, N], N the most pages of a row.

        What lies beyond a row's pages, and rows that get all of theirs, are left at 0.
        """
        ...

    def select(self, scores: Tensor, rows: StepBatch) -> Selection:
        """Choose `CacheShape.top_pages` pages of each row and head; all under `KVCache.full_attention`."""
        ...


def budgets(cache: KVCache, rows: StepBatch) -> tuple[Tensor, Tensor]:
    """How many pages each row has, and how many it gets: int64 [R]."""
    lengths = torch.where(rows.valid, rows.positions.long() // cache.shape.page + 1, 0)
    top = lengths.clamp(max=cache.shape.top_pages)
    return lengths, torch.where(cache.full_attention[rows.streams], lengths, top)


def scored_rows(cache: KVCache, rows: StepBatch) -> list[tuple[int, Tensor]]:
    """Rows that do not get all of their pages, each with those: int64 [n], pages of the host.

    Whoever scores takes them one by one, each in its own length: so a row's scores have the same bits whatever
    other rows there are.
    """
    lengths, top = budgets(cache, rows)
    counts = zip(lengths.tolist(), top.tolist(), strict=True)
    return [
        (row, cache.host_block_table[rows.slots[row], :length].long())
        for row, (length, chosen) in enumerate(counts)
        if chosen < length
    ]


def no_scores(cache: KVCache, rows: StepBatch, heads: int, dtype: torch.dtype) -> Tensor:
    """Zeros [R, heads, N], for a selector to fill in."""
    lengths, _ = budgets(cache, rows)
    return torch.zeros((len(lengths), heads, int(lengths.max()) if len(lengths) else 0), dtype=dtype)


def select_by_attention(
    cache: KVCache, scores: Tensor, rows: StepBatch, newest_forced: int, soft_cap: float | None
) -> Selection:
    """The pages with the largest mean over a group of each query head's softmax over all pages.

    scores: [R, heads, N], logits. The first page and so many of the newest are always among them.
    """
    shape = cache.shape
    lengths, top = budgets(cache, rows)
    weights = attention_shares(cache, scores, rows, soft_cap)
    page = torch.arange(scores.shape[2])
    forced = (page == 0) | (page >= lengths[:, None] - newest_forced)
    return top_pages(weights, lengths, forced, top, max([shape.top_pages, *top.tolist()]))


def attention_shares(
    cache: KVCache, scores: Tensor, rows: StepBatch, soft_cap: float | None = None
) -> Tensor:
    """The softmax of scores over each row's pages, its mean over a group: [R, heads, N] -> [R, H, N].

    Rows that get all of their pages have no scores; there each page counts alike.
    """
    heads = cache.shape.heads
    lengths, _ = budgets(cache, rows)
    shares = torch.zeros((len(lengths), heads, scores.shape[2]), dtype=scores.dtype)
    scored = dict(scored_rows(cache, rows))
    for row, length in enumerate(lengths.tolist()):
        if row in scored:
            logits = scores[row, :, :length].unflatten(0, (heads, -1)).clone()
            shares[row, :, :length] = numerics.soft_cap(logits, soft_cap).softmax(-1).mean(1)
        elif length:
            shares[row, :, :length] = 1 / length
    return shares


def everything(rows: StepBatch, heads: int, page: int) -> Selection:
    """Select all pages of all rows."""
    counts = torch.where(rows.valid, rows.positions.long() // page + 1, 0)
    each = torch.arange(int(counts.max()) if len(counts) else 0)
    pages = torch.where(each < counts[:, None], each, -1).int()
    shape = (len(counts), heads)
    return Selection(
        pages[:, None].expand(*shape, -1),
        counts.int()[:, None].expand(shape),
        rows.valid.float()[:, None].expand(shape),
    )


def top_pages(
    scores: Tensor,
    lengths: Tensor,
    forced: Tensor,
    top: Tensor,
    width: int,
    shares: Tensor | None = None,
) -> Selection:
    """Choose the best pages of each row and head, ties to the lower page.

    scores: [R, H, N]; lengths: int64 [R], pages that a row has; forced: bool [R, N], what is chosen in any case;
    top: int64 [R], how many a row gets, the forced ones among them; width: K, at least the greatest of what rows
    get. The mass is the sum of the shares of what is chosen; without them scores are shares.
    """
    rows, heads, most = scores.shape
    each = torch.arange(most)
    exists = (each < lengths[:, None])[:, None]
    # What does not exist shares the last rank with scores of -inf, but comes after them.
    rank_by = scores.masked_fill(forced[:, None], float("inf")).masked_fill(~exists, float("-inf"))
    order = rank_by.sort(dim=-1, descending=True, stable=True).indices
    counts = torch.minimum(top, lengths)[:, None].expand(rows, heads)
    kept = each < counts[..., None]
    mass = torch.where(kept, (scores if shares is None else shares).gather(-1, order), 0.0).sum(-1)
    pages = torch.full((rows, heads, max(width, most)), most)
    pages[..., :most] = torch.where(kept, order, most)
    pages = pages.sort(dim=-1).values[..., :width]
    return Selection(torch.where(pages < most, pages, -1).int(), counts.int(), mass.float())
