"""Attention over segments against one dense product under an explicit mask, in float64."""

import numpy as np
import pytest
import torch

from hiscore.attention import torch_attention
from hiscore.attention.base import AttentionShape
from hiscore.attention.torch_attention import TorchAttention
from hiscore.packing import Forward, pack
from tests.support.strategies import random_tokens


def dense(forward: Forward, shape: AttentionShape, window: int | None, q, k, v) -> torch.Tensor:
    """softmax over [T, slots] with everything hidden that the rule hides."""
    position = np.full((len(forward.input_ids), len(k)), -1)
    for segment, context in enumerate(forward.context_of):
        first, last = forward.cu_seqlens[segment : segment + 2]
        slots = np.concatenate((forward.contexts[context], np.arange(first, last) + forward.kept))
        for row in range(first, last):
            seen = slots[: len(slots) - (last - 1 - row)]
            position[row, seen] = np.arange(len(seen))
    newest = position.max(axis=1, keepdims=True)
    allowed = (position >= 0) & (newest - position < (window or 10**9))
    group = shape.heads // shape.kv_heads
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
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
    for forward in pack(calls, budget):
        slots = forward.kept + len(forward.input_ids)
        q, k, v = (
            torch.randn(rows, heads, 8, generator=generator)
            for rows, heads in ((slots - forward.kept, 4), (slots, 2), (slots, 2))
        )
        attention = TorchAttention(shape)
        attention.plan(forward)
        out = attention.run(0, q, k, v)
        # float32 sums of at most 60 weights: 1e-5 is ten times their rounding.
        torch.testing.assert_close(out.double(), dense(forward, shape, window, q, k, v), atol=1e-5, rtol=0)
