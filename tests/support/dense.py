"""Attention by its definition: dense, with an explicit mask, in float64."""

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.metadata import Forward


def dense_attention(
    forward: Forward, shape: AttentionShape, window: int | None, qkv: Tensor, pool: Tensor
) -> Tensor:
    """softmax over [T, pool slots + T] with everything hidden that the rule hides.

    qkv: [T, heads + 2 kv_heads, head_dim]; pool: [slots, 2, kv_heads, head_dim]. Returns [T, heads head_dim].
    """
    q, k, v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    position = np.full((len(q), len(pool) + len(k)), -1)
    edges = forward.cu_seqlens
    for group in forward.groups:
        rows = np.arange(group.context_rows.start, group.context_rows.stop)
        context = np.concatenate((group.context_slots, group.own_slots, rows + len(pool)))
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
    weights = logits.exp()
    total = weights.sum(-1, keepdim=True)
    if shape.sinks is not None:
        total = total + shape.sinks[0].double().cpu().exp()[:, None, None]
    return torch.einsum("hts,shd->thd", weights / total, v).flatten(1)
