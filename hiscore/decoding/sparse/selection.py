"""Selection of the pages that a row attends to: what selectors share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.device import numerics


@dataclass(frozen=True)
class Selection:
    """Selected pages of R rows and H KV heads in one layer; a padding row has none.

    Attributes:
        pages: int32 [R, H, K], page numbers within each sequence, ascending; then -1.
        counts: int32 [R, H], pages per list, the same for all heads of a row.
        mass: float32 [R, H], the share of attention that the pages are estimated to capture.
    """

    pages: Tensor
    counts: Tensor
    mass: Tensor


def page_budgets(cache: KVCache, batch: StepBatch) -> tuple[Tensor, Tensor]:
    """Count the pages that each row has, and those that it gets: int64 [R] each."""
    lengths = torch.where(batch.valid, batch.positions.long() // cache.shape.page_size + 1, 0)
    budgets = lengths.clamp(max=cache.shape.top_pages)
    return lengths, torch.where(cache.full_attention[batch.table_rows], lengths, budgets)


def rows_to_score(cache: KVCache, batch: StepBatch) -> list[tuple[int, Tensor]]:
    """List the rows that do not get all of their pages, each with its host pages, int64 [n].

    Selectors score each row at its own length, so that no bit of a score depends on the rest of the batch.
    """
    lengths, budgets = page_budgets(cache, batch)
    return [
        (row, cache.host_block_table[batch.seq_indices[row], :length].long())
        for row, (length, budget) in enumerate(zip(lengths.tolist(), budgets.tolist(), strict=True))
        if budget < length
    ]


def zero_scores(cache: KVCache, batch: StepBatch, heads: int, dtype: torch.dtype) -> Tensor:
    """Make zeros [R, heads, N] for a selector to fill in."""
    lengths, _ = page_budgets(cache, batch)
    return torch.zeros((len(lengths), heads, int(lengths.max()) if len(lengths) else 0), dtype=dtype)


def select(
    cache: KVCache, scores: Tensor, batch: StepBatch, soft_cap: float | None = None, by_scores: bool = False
) -> Selection:
    """Select by scores [R, heads, N], or by the shares of attention that they stand for as logits.

    By shares, the first page and `CacheShape.newest_selected` of the newest are always selected.
    """
    lengths, budgets = page_budgets(cache, batch)
    shares = attention_shares(cache, scores, batch, soft_cap)
    page = torch.arange(scores.shape[2])
    forced = (page == 0) | (page >= lengths[:, None] - cache.shape.newest_selected)
    width = max([cache.shape.top_pages, *budgets.tolist()])
    if by_scores:
        return select_top_pages(scores, lengths, torch.zeros_like(forced), budgets, width, shares)
    return select_top_pages(shares, lengths, forced, budgets, width)


def attention_shares(
    cache: KVCache, scores: Tensor, batch: StepBatch, soft_cap: float | None = None
) -> Tensor:
    """Average the softmax over each row's pages over the query heads of a KV head: [R, heads, N] to [R, H, N].

    A row that gets all of its pages has no scores; its pages share attention equally.
    """
    heads = cache.shape.kv_heads
    lengths, _ = page_budgets(cache, batch)
    shares = torch.zeros((len(lengths), heads, scores.shape[2]), dtype=scores.dtype)
    scored = dict(rows_to_score(cache, batch))
    for row, length in enumerate(lengths.tolist()):
        if row in scored:
            logits = scores[row, :, :length].unflatten(0, (heads, -1)).clone()
            shares[row, :, :length] = numerics.soft_cap(logits, soft_cap).softmax(-1).mean(1)
        elif length:
            shares[row, :, :length] = 1 / length
    return shares


def select_top_pages(
    scores: Tensor, lengths: Tensor, forced: Tensor, budgets: Tensor, width: int, shares: Tensor | None = None
) -> Selection:
    """Select the pages with the highest scores, of equal ones the lower page.

    Args:
        scores: [R, H, N].
        lengths: int64 [R], pages that each row has.
        forced: bool [R, N], pages to select regardless of their scores.
        budgets: int64 [R], pages that each row gets, forced ones included.
        width: Length of the lists, at least the greatest budget.
        shares: [R, H, N], summed over the selected pages to `Selection.mass`; by default the scores.
    """
    rows, heads, pages_scored = scores.shape
    page = torch.arange(pages_scored)
    exists = (page < lengths[:, None])[:, None]
    # Pages beyond a row's length tie with scores of -inf, but the stable sort puts them last.
    ranked_by = scores.masked_fill(forced[:, None], float("inf")).masked_fill(~exists, float("-inf"))
    order = ranked_by.sort(dim=-1, descending=True, stable=True).indices
    counts = torch.minimum(budgets, lengths)[:, None].expand(rows, heads)
    kept = page < counts[..., None]
    mass = torch.where(kept, (scores if shares is None else shares).gather(-1, order), 0.0).sum(-1)
    pages = torch.full((rows, heads, max(width, pages_scored)), pages_scored)
    pages[..., :pages_scored] = torch.where(kept, order, pages_scored)
    pages = pages.sort(dim=-1).values[..., :width]
    return Selection(torch.where(pages < pages_scored, pages, -1).int(), counts.int(), mass.float())
