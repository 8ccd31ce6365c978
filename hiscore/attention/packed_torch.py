"""Packed attention in PyTorch, for the CPU: in float32, without padding.

Segments of one length that share a context are computed together: one product with the context's keys, and a
small causal one of each segment with itself. A long segment is cut into pieces, with the earlier pieces in the
context of the later ones. That is the same attention in bounded memory.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.metadata import Forward
from hiscore.numerics import soft_cap, softmax, widen

PIECE = 256
"""Rows: enough for efficient products, few enough that the masked half of the causal triangle costs little."""
MAX_WEIGHTS = 2**24
"""Attention weights alive at once, in elements: 64 MiB of float32."""


@dataclass(frozen=True)
class _Batch:
    """Segments of one length with one context."""

    rows: Tensor
    """int64 [segments, length]"""
    context_slots: Tensor
    """int64 [N]"""
    context_rows: Tensor
    """int64 [M]"""


class TorchAttention:
    """`Attention` on the CPU."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._batches: list[_Batch] = []

    def plan(self, forward: Forward) -> None:
        """Prepare for the layers of a forward."""
        self._batches = []
        edges = forward.cu_seqlens.astype(np.int64)
        for group in forward.groups:
            slots = torch.from_numpy(np.concatenate((group.context_slots, group.own_slots)))
            rows = torch.arange(group.context_rows.start, group.context_rows.stop)
            segments = slice(*np.searchsorted(edges, (group.first_row, group.last_row)))
            starts, lengths = edges[segments], np.diff(edges[segments.start : segments.stop + 1])
            for length in np.unique(lengths):
                first = torch.from_numpy(starts[lengths == length])
                if length <= PIECE:
                    self._add(first, int(length), slots, rows)
                else:
                    for start in first.tolist():
                        self._add_pieces(start, int(length), slots, rows)

    def _add_pieces(self, start: int, length: int, slots: Tensor, rows: Tensor) -> None:
        for begin in range(0, length, PIECE):
            before = torch.cat((rows, torch.arange(start, start + begin)))
            self._add(torch.tensor([start + begin]), min(PIECE, length - begin), slots, before)

    def _add(self, first: Tensor, length: int, context_slots: Tensor, context_rows: Tensor) -> None:
        rows = first[:, None] + torch.arange(length)
        keys = len(context_slots) + len(context_rows) + length
        for part in rows.split(max(1, MAX_WEIGHTS // (self._shape.heads * length * keys))):
            self._batches.append(_Batch(part, context_slots, context_rows))

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        shape = self._shape
        q, k, v = qkv.unflatten(1, (-1, shape.head_dim)).split(
            [shape.heads, shape.kv_heads, shape.kv_heads], 1
        )
        out = torch.empty_like(q)
        for batch in self._batches:
            out[batch.rows] = self._attend(
                layer,
                widen(q[batch.rows]),
                widen(torch.cat((pool[batch.context_slots, 0], k[batch.context_rows]))),
                widen(torch.cat((pool[batch.context_slots, 1], v[batch.context_rows]))),
                widen(k[batch.rows]),
                widen(v[batch.rows]),
            ).to(q.dtype)
        return out.flatten(1)

    def _attend(
        self,
        layer: int,
        q: Tensor,
        context_k: Tensor,
        context_v: Tensor,
        own_k: Tensor,
        own_v: Tensor,
    ) -> Tensor:
        """Attend from n segments of m rows to a shared context of p tokens and to themselves.

        Args:
            layer: For its window and sinks.
            q: [n, m, heads, d].
            context_k, context_v: [p, kv_heads, d].
            own_k, own_v: [n, m, kv_heads, d].

        Returns:
            [n, m, heads, d].
        """
        window, sinks = self._shape.windows[layer], self._shape.sinks
        segments, length, heads, head_dim = q.shape
        before, kv_heads = context_k.shape[:2]
        # [kv_heads, segments, length group, head_dim]: the heads of a group share keys and values.
        q = q.view(segments, length, kv_heads, -1, head_dim).permute(2, 0, 1, 3, 4).flatten(2, 3)
        own_k, own_v = own_k.permute(2, 0, 1, 3), own_v.permute(2, 0, 1, 3)
        context_logits = q.flatten(1, 2) @ context_k.permute(1, 2, 0)
        logits = torch.cat((context_logits.view(*q.shape[:-1], before), q @ own_k.transpose(-1, -2)), dim=-1)
        logits *= self._shape.scale
        logits = soft_cap(logits, self._shape.soft_cap)
        logits = logits.view(kv_heads, segments, length, -1, before + length)
        logits.masked_fill_(_hidden(before, length, window)[:, None, :], float("-inf"))
        # As the logits: [kv_heads, 1, 1, group, 1].
        of_heads = None if sinks is None else sinks[layer].view(kv_heads, 1, 1, -1, 1)
        weights = softmax(logits, of_heads).flatten(2, 3)
        out = weights[..., :before].flatten(1, 2) @ context_v.permute(1, 0, 2)
        out = out.view(q.shape) + weights[..., before:] @ own_v
        out = out.view(kv_heads, segments, length, -1, head_dim).permute(1, 2, 0, 3, 4)
        return out.reshape(segments, length, heads, head_dim)


def _hidden(before: int, length: int, window: int | None) -> Tensor:
    """bool [length, before + length]: the key positions that the rows of a segment do not see."""
    query = torch.arange(before, before + length)[:, None]
    key = torch.arange(before + length)
    hidden = key > query
    return hidden if window is None else hidden | (key <= query - window)
