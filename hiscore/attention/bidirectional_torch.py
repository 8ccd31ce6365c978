"""Attention in both directions in PyTorch, for the CPU: segments of one length together, without padding."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.bidirectional import BidirectionalShape, RelativeProjections
from hiscore.attention.metadata import Forward

MAX_WEIGHTS = 2**24
"""Attention weights alive at once, in elements: 64 MiB of float32."""


@dataclass(frozen=True)
class _SegmentBatch:
    """Segments of one length."""

    rows: Tensor  # int64 [segments, length]
    read: slice
    """Rows of each segment that are read in the last layer."""


class TorchBidirectionalAttention:
    """`BidirectionalAttention` on the CPU."""

    def __init__(self, shape: BidirectionalShape) -> None:
        self._shape = shape
        self._batches: list[_SegmentBatch] = []

    def plan(self, forward: Forward) -> None:
        """Prepare for a forward, whose last layer computes first or last rows alone if those are read."""
        edges = forward.cu_seqlens.astype(np.int64)
        starts, lengths = edges[:-1], np.diff(edges)
        read = slice(None)
        if np.array_equal(forward.scored_rows, starts):
            read = slice(0, 1)
        elif np.array_equal(forward.scored_rows, edges[1:] - 1):
            read = slice(-1, None)
        self._batches = []
        for length in np.unique(lengths).tolist():
            rows = torch.from_numpy(starts[lengths == length])[:, None] + torch.arange(length)
            at_once = max(1, MAX_WEIGHTS // (self._shape.heads * length * length))
            self._batches += [_SegmentBatch(part, read) for part in rows.split(at_once)]

    def attend(self, layer: int, qkv: Tensor, relative: RelativeProjections | None) -> Tensor:
        shape = self._shape
        q, k, v = qkv.unflatten(1, (3, shape.heads, shape.head_dim)).unbind(1)
        out = torch.empty(q.shape, dtype=q.dtype)
        for batch in self._batches:
            read = batch.read if layer == len(shape.reaches) - 1 else slice(None)
            queries, places = batch.rows[:, read], torch.arange(batch.rows.shape[1])[read]
            # [segments, heads, length, head_dim]
            own_q, own_k, own_v = (x.transpose(1, 2) for x in (q[queries], k[batch.rows], v[batch.rows]))
            bias = self._bias(layer, places, own_q, own_k, relative)
            attended = torch.nn.functional.scaled_dot_product_attention(
                own_q, own_k, own_v, attn_mask=bias, scale=shape.scale
            )
            out[queries] = attended.transpose(1, 2)
        return out.flatten(1)

    def _bias(
        self, layer: int, places: Tensor, q: Tensor, k: Tensor, relative: RelativeProjections | None
    ) -> Tensor | None:
        """Mask of the logits of queries at `places`: bool or float, for [segments, heads, queries, keys]."""
        distance = places[:, None] - torch.arange(k.shape[2])
        reach = self._shape.reaches[layer]
        if self._shape.causal:
            return (distance >= 0) & (distance <= (distance.numel() if reach is None else reach))
        if reach is not None:
            return distance.abs() <= reach
        if relative is None or self._shape.relative_rows is None:
            return None
        rows = self._shape.relative_rows[distance + self._shape.farthest].long()
        bias = torch.zeros((), dtype=q.dtype)
        if relative.keys is not None:
            by_position = q @ relative.keys.mT
            bias = bias + by_position.gather(3, rows.expand(*q.shape[:2], -1, -1))
        if relative.queries is not None:
            by_position = k @ relative.queries.mT
            # Of each key for each query, so gathered along the key's own rows and turned around.
            bias = bias + by_position.gather(3, rows.T.expand(*k.shape[:2], -1, -1)).mT
        bias = bias * self._shape.scale
        if relative.biases is not None:
            bias = bias + relative.biases[:, rows]
        return bias if bias.ndim else None
