"""Attention in plain torch, for the CPU: exact, in float32, without padding.

Segments of one length that share a context are computed together, as one product with the context's keys and a
small causal one of each segment with itself. A long segment is cut into pieces, each of which has the earlier
ones in its context: that is the same attention, and bounds the memory.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.packing import Forward

# Long enough for efficient products, short enough that a causal triangle's empty half costs little.
PIECE = 256
# Attention weights alive at once, in elements: 64 MiB of float32.
MAX_WEIGHTS = 2**24


@dataclass(frozen=True)
class _Group:
    """Segments of one length with one context."""

    rows: Tensor  # int64 [segments, length]
    context: Tensor  # int64 [context length], slots


class TorchAttention:
    """`Attention` on whatever device the tensors are."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._kept = 0
        self._groups: list[_Group] = []

    def plan(self, forward: Forward) -> None:
        self._kept = forward.kept
        self._groups = []
        starts, lengths = forward.cu_seqlens[:-1].astype(np.int64), np.diff(forward.cu_seqlens)
        kinds, members = np.unique(np.stack((forward.context_of, lengths)), axis=1, return_inverse=True)
        for kind, (context_index, length) in enumerate(kinds.T):
            context = torch.from_numpy(forward.contexts[context_index])
            first = torch.from_numpy(starts[members.ravel() == kind])
            if length <= PIECE:
                self._add(first, int(length), context)
                continue
            for start in first:
                self._add_pieces(int(start), int(length), context)

    def _add_pieces(self, start: int, length: int, context: Tensor) -> None:
        for begin in range(0, length, PIECE):
            before = torch.arange(start, start + begin) + self._kept
            self._add(torch.tensor([start + begin]), min(PIECE, length - begin), torch.cat((context, before)))

    def _add(self, first: Tensor, length: int, context: Tensor) -> None:
        rows = first[:, None] + torch.arange(length)
        weights_per_segment = self._shape.heads * length * (len(context) + length)
        for part in rows.split(max(1, MAX_WEIGHTS // weights_per_segment)):
            self._groups.append(_Group(part, context))

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        for group in self._groups:
            slots = group.rows + self._kept
            out[group.rows] = self._attend(
                self._shape.windows[layer],
                q[group.rows].float(),
                k[group.context].float(),
                v[group.context].float(),
                k[slots].float(),
                v[slots].float(),
            ).to(q.dtype)
        return out

    def _attend(
        self,
        window: int | None,
        q: Tensor,
        context_k: Tensor,
        context_v: Tensor,
        own_k: Tensor,
        own_v: Tensor,
    ) -> Tensor:
        """q [n, m, heads, d], context [p, kv_heads, d], own [n, m, kv_heads, d] -> [n, m, heads, d]."""
        segments, length, heads, head_dim = q.shape
        before, kv_heads = context_k.shape[:2]
        # [kv_heads, segments, length * group, head_dim]: the heads of a group share keys and values.
        q = q.view(segments, length, kv_heads, -1, head_dim).permute(2, 0, 1, 3, 4).flatten(2, 3)
        own_k, own_v = own_k.permute(2, 0, 1, 3), own_v.permute(2, 0, 1, 3)
        to_context = q.flatten(1, 2) @ context_k.permute(1, 2, 0)
        logits = torch.cat((to_context.view(*q.shape[:-1], before), q @ own_k.transpose(-1, -2)), dim=-1)
        logits *= self._shape.scale
        if self._shape.soft_cap is not None:
            logits = torch.tanh(logits / self._shape.soft_cap) * self._shape.soft_cap
        logits = logits.view(kv_heads, segments, length, -1, before + length)
        logits.masked_fill_(_hidden(before, length, window)[:, None, :], float("-inf"))
        weights = logits.softmax(dim=-1).flatten(2, 3)
        of_context = weights[..., :before].flatten(1, 2) @ context_v.permute(1, 0, 2)
        out = of_context.view(q.shape) + weights[..., before:] @ own_v
        out = out.view(kv_heads, segments, length, -1, head_dim).permute(1, 2, 0, 3, 4)
        return out.reshape(segments, length, heads, head_dim)


def _hidden(before: int, length: int, window: int | None) -> Tensor:
    """bool [length, before + length]: which positions a segment's tokens do not see."""
    token = torch.arange(before, before + length)[:, None]
    seen = torch.arange(before + length)
    hidden = seen > token
    return hidden if window is None else hidden | (seen <= token - window)
