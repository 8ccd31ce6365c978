"""Attention over segments against one dense product under an explicit mask, in float64."""

import numpy as np
import pytest
import torch

from hiscore.attention import packed_torch
from hiscore.attention.base import AttentionShape
from hiscore.attention.packed_torch import TorchAttention
from hiscore.scoring.packing.packing import pack, pool_reserve
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from tests.support.dense import dense_attention
from tests.support.strategies import random_tokens

CALLS = [(30, [4, 4, 9, 0, 1, 17]), (0, [3, 12]), (5, []), (11, [2] * 6)]


@pytest.mark.parametrize("budget", [1_000, 37, 32])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(("soft_cap", "with_sinks"), [(None, False), (1.5, False), (None, True)])
def test_segments_attend_as_the_dense_mask_says(
    budget: int, window: int | None, soft_cap: float | None, with_sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small pieces and few weights at once, so that both ways of cutting the work are taken.
    monkeypatch.setattr(packed_torch, "PIECE", 7)
    monkeypatch.setattr(packed_torch, "MAX_WEIGHTS", 500)
    rng = np.random.default_rng(1)
    calls = [random_tokens(rng, query, items, 100).prompt() for query, items in CALLS]
    generator = torch.Generator().manual_seed(2)
    sinks = (torch.randn(4, generator=generator),) if with_sinks else None
    shape = AttentionShape(4, 2, 8, 0.4, soft_cap, (window,), sinks)
    pages = QueryCache(pool_reserve(64, budget), reserve=0, caching=False)
    for forward in pack(calls, budget, pages).forwards:
        rows = len(forward.input_ids)
        qkv = torch.randn(rows, 8, 8, generator=generator)
        pool = torch.randn(pool_reserve(64, budget) * PAGE, 2, 2, 8, generator=generator)
        attention = TorchAttention(shape)
        attention.plan(forward)
        out = attention.attend(0, qkv.flatten(1), pool)
        # float32 sums of at most 60 weights: 1e-5 is ten times their rounding.
        expected = dense_attention(forward, shape, window, qkv, pool)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("window", "soft_cap", "whole"),
    [(None, None, True), (47, None, True), (46, None, False), (None, 1.5, False)],
    ids=["everything", "a window as long as the call", "a window that hides a key", "a soft cap"],
)
def test_logits_are_computed_only_where_they_must_be(
    window: int | None, soft_cap: float | None, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query of 30 tokens with an item of 17: the last row sees 47."""
    computed: list[int] = []
    attend = packed_torch.TorchAttention._attend
    monkeypatch.setattr(
        packed_torch.TorchAttention, "_attend", lambda self, *args: computed.append(1) or attend(self, *args)
    )
    call = random_tokens(np.random.default_rng(1), 30, [4, 17], 100).prompt()
    (forward,) = pack([call], 1_000, QueryCache(64, reserve=0, caching=False)).forwards
    shape = AttentionShape(4, 2, 8, 0.4, soft_cap, (window,))
    attention = TorchAttention(shape)
    attention.plan(forward)
    qkv, pool = torch.randn(len(forward.input_ids), 8, 8), torch.randn(64 * PAGE, 2, 2, 8)
    out = attention.attend(0, qkv.flatten(1), pool)
    assert (not computed) == whole
    expected = dense_attention(forward, shape, window, qkv, pool)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)
