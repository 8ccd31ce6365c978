"""Attention over segments against one dense product under an explicit mask, in float64."""

import numpy as np
import pytest
import torch

from hiscore.attention import torch_attention
from hiscore.attention.base import AttentionShape
from hiscore.attention.torch_attention import TorchAttention
from hiscore.kv_pages import PAGE, KVPages
from hiscore.packing import Forward, pack, pool_reserve
from tests.support.strategies import random_tokens


def dense(forward: Forward, shape: AttentionShape, window: int | None, q, k, v, pool) -> torch.Tensor:
    """softmax over [T, pool slots + T] with everything hidden that the rule hides."""
    position = np.full((len(q), len(pool) + len(k)), -1)
    edges = forward.cu_seqlens
    for group in forward.groups:
        rows = np.arange(group.context_rows.start, group.context_rows.stop)
        context = np.concatenate((group.context_slots, rows + len(pool)))
        for row in range(group.first_row, group.last_row):
            first = edges[np.searchsorted(edges, row, side="right") - 1]
            seen = np.concatenate((context, np.arange(first, row + 1) + len(pool)))
            position[row, seen] = np.arange(len(seen))
    newest = position.max(axis=1, keepdims=True)
    allowed = (position >= 0) & (newest - position < (window or 10**9))
    k, v = torch.cat((pool[:, 0], k)).double(), torch.cat((pool[:, 1], v)).double()
    group_size = shape.heads // shape.kv_heads
    k, v = k.repeat_interleave(group_size, 1), v.repeat_interleave(group_size, 1)
    logits = torch.einsum("thd,shd->hts", q.double(), k) * shape.scale
    if shape.soft_cap:
        logits = torch.tanh(logits / shape.soft_cap) * shape.soft_cap
    logits = logits.masked_fill(~torch.from_numpy(allowed), float("-inf"))
    return torch.einsum("hts,shd->thd", logits.softmax(-1), v)


CALLS = [(30, [4, 4, 9, 0, 1, 17]), (0, [3, 12]), (5, []), (11, [2] * 6)]


@pytest.mark.parametrize("budget", [1_000, 37, 8])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_segments_attend_as_the_dense_mask_says(
    budget: int, window: int | None, soft_cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small pieces and few weights at once, so that both ways of cutting the work are taken.
    monkeypatch.setattr(torch_attention, "PIECE", 7)
    monkeypatch.setattr(torch_attention, "MAX_WEIGHTS", 500)
    rng = np.random.default_rng(1)
    calls = [random_tokens(rng, query, items, 100).call() for query, items in CALLS]
    shape = AttentionShape(4, 2, 8, 0.4, soft_cap, (window,))
    generator = torch.Generator().manual_seed(2)
    pages = KVPages(pool_reserve(64, budget), reserve=0, caching=False)
    for forward in pack(calls, budget, pages).forwards:
        rows = len(forward.input_ids)
        qkv = torch.randn(rows, 8, 8, generator=generator)
        q, k, v = qkv.split([4, 2, 2], dim=1)
        pool = torch.randn(pages.pages * PAGE, 2, 2, 8, generator=generator)
        attention = TorchAttention(shape)
        attention.plan(forward)
        out = attention.run(0, qkv.flatten(1), pool).unflatten(1, (4, 8))
        # float32 sums of at most 60 weights: 1e-5 is ten times their rounding.
        expected = dense(forward, shape, window, q, k, v, pool)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)
