"""Packed attention in PyTorch, for the CPU: in float32, without padding.

The rows of a group attend to their context together, and each segment to itself: see `flash_torch`. Where a soft
cap or a window is in the way of the flash kernel, logits are computed as such, by segments of one length together.
A long segment is then cut into pieces, with the earlier pieces in the context of the later ones: the same
attention in bounded memory.
"""

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int64
from hiscore.attention.base import AttentionShape
from hiscore.attention.flash_torch import flash_attention
from hiscore.attention.metadata import Forward, SegmentGroup
from hiscore.device.numerics import soft_cap, softmax, widen

PIECE = 256
"""Rows: enough for efficient products, few enough that the masked half of the causal triangle costs little."""
MAX_WEIGHTS = 2**24
"""Attention weights alive at once, in elements: 64 MiB of float32."""


@dataclass(frozen=True)
class _ContextBatch:
    rows: Tensor  # int64 [segments, length]
    context_slots: Tensor  # int64 [N]
    context_rows: Tensor  # int64 [M]


class _Segments:
    """The segments of a group, which share a context."""

    def __init__(self, group: SegmentGroup, context_slots: Int64, edges: Int64, heads: int) -> None:
        self.rows = slice(group.first_row, group.last_row)
        self.slots = torch.from_numpy(np.concatenate((context_slots, group.own_slots)))
        self.context_rows = group.context_rows
        inside = slice(*np.searchsorted(edges, (group.first_row, group.last_row)))
        self.starts, self.lengths = edges[inside], np.diff(edges[inside.start : inside.stop + 1])
        self.context = len(self.slots) + group.context_rows.stop - group.context_rows.start
        self.longest: int = self.context + self.lengths.max(initial=0)
        """Keys that a segment's last row sees without a window, at most."""
        self._heads = heads

    @cached_property
    def of_one_length(self) -> list[Tensor]:
        """The rows of the segments of each length, int64 [segments, length]."""
        return [
            torch.from_numpy(self.starts[self.lengths == length])[:, None] + torch.arange(length)
            for length in np.unique(self.lengths).tolist()
        ]

    @cached_property
    def batches(self) -> list[_ContextBatch]:
        """Batches in which logits are computed."""
        found = []
        before = torch.arange(self.context_rows.start, self.context_rows.stop)
        for rows in self.of_one_length:
            if rows.shape[1] <= PIECE:
                found += self._batches(rows, before)
                continue
            for row in rows:
                for begin in range(0, len(row), PIECE):
                    found += self._batches(row[None, begin : begin + PIECE], torch.cat((before, row[:begin])))
        return found

    def _batches(self, rows: Tensor, context_rows: Tensor) -> list[_ContextBatch]:
        keys = len(self.slots) + len(context_rows) + rows.shape[1]
        parts = rows.split(max(1, MAX_WEIGHTS // (self._heads * rows.shape[1] * keys)))
        return [_ContextBatch(part, self.slots, context_rows) for part in parts]


class TorchAttention:
    """`Attention` on the CPU."""

    def __init__(self, shape: AttentionShape, windowed: Container[int] = ()) -> None:
        self._shape, self._windowed = shape, windowed
        self._groups: list[_Segments] = []
        self._in_windows: list[_Segments] = []

    def plan(self, forward: Forward) -> None:
        edges = forward.cu_seqlens.astype(np.int64)
        heads = self._shape.heads
        self._groups = [_Segments(group, group.context_slots, edges, heads) for group in forward.groups]
        if self._windowed:
            self._in_windows = [
                _Segments(group, group.window_slots, edges, heads) for group in forward.groups
            ]

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        shape, (kv_heads, head_dim) = self._shape, pool.shape[-2:]
        q, k, v = widen(qkv).unflatten(1, (-1, head_dim)).split([shape.heads, kv_heads, kv_heads], 1)
        out = torch.empty(q.shape, dtype=qkv.dtype)
        for group in self._in_windows if layer in self._windowed else self._groups:
            window = shape.windows[layer]
            if shape.soft_cap is None and (window is None or window >= group.longest):
                self._attend_whole(group, layer, q, k, v, pool, out)
            else:
                for batch in group.batches:
                    self._attend_batch(batch, layer, q, k, v, pool, out)
        return out.flatten(1)

    def _attend_whole(
        self, group: _Segments, layer: int, q: Tensor, k: Tensor, v: Tensor, pool: Tensor, out: Tensor
    ) -> None:
        """Attend where every row sees everything up to itself; see `attend`, whose result is `out`."""
        scale, sinks = self._shape.scale, self._shape.sinks
        seen = None
        if group.context:
            context_k, context_v = k[group.context_rows], v[group.context_rows]
            if len(group.slots):
                context_k = torch.cat((widen(pool[group.slots, 0]), context_k))
                context_v = torch.cat((widen(pool[group.slots, 1]), context_v))
            seen = flash_attention(q[group.rows][None], context_k[None], context_v[None], scale, causal=False)
        for rows in group.of_one_length:
            own = flash_attention(q[rows], k[rows], v[rows], scale, causal=True)
            if seen is not None:
                own = own.join(seen.of(rows - group.rows.start))
            out[rows] = (own.out if sinks is None else own.with_sinks(sinks[layer])).to(out.dtype)

    def _attend_batch(
        self, batch: _ContextBatch, layer: int, q: Tensor, k: Tensor, v: Tensor, pool: Tensor, out: Tensor
    ) -> None:
        """Attend by computing the logits; see `attend`, whose result is `out`."""
        window, before = self._shape.windows[layer], len(batch.context_slots) + len(batch.context_rows)
        # What a segment's first row does not see, none does.
        unseen = 0 if window is None else max(0, before - window + 1)
        slots = batch.context_slots[unseen:]
        rows = batch.context_rows[max(0, unseen - len(batch.context_slots)) :]
        out[batch.rows] = self._attend(
            layer,
            q[batch.rows],
            torch.cat((widen(pool[slots, 0]), k[rows])),
            torch.cat((widen(pool[slots, 1]), v[rows])),
            k[batch.rows],
            v[batch.rows],
        ).to(out.dtype)

    def _attend(
        self, layer: int, q: Tensor, context_k: Tensor, context_v: Tensor, own_k: Tensor, own_v: Tensor
    ) -> Tensor:
        """Attend from q [n, m, heads, d] to a context [p, kv_heads, d] and to themselves [n, m, kv_heads, d]."""
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
