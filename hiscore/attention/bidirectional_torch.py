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
    read: int
    """Leading rows of each segment that are read in the last layer."""


class TorchBidirectionalAttention:
    """`BidirectionalAttention` on the CPU."""

    def __init__(self, shape: BidirectionalShape) -> None:
        self._shape = shape
        self._batches: list[_SegmentBatch] = []

    def plan(self, forward: Forward) -> None:
        """Prepare for the layers of a forward, where each segment's first row is read or all of them are."""
        edges = forward.cu_seqlens.astype(np.int64)
        starts, lengths = edges[:-1], np.diff(edges)
        everything = len(forward.scored_rows) == len(forward.input_ids)
        self._batches = []
        for length in np.unique(lengths).tolist():
            rows = torch.from_numpy(starts[lengths == length])[:, None] + torch.arange(length)
            at_once = max(1, MAX_WEIGHTS // (self._shape.heads * length * length))
            read = length if everything else 1
            self._batches += [_SegmentBatch(part, read) for part in rows.split(at_once)]

    def attend(self, layer: int, qkv: Tensor, relative: RelativeProjections | None) -> Tensor:
        shape = self._shape
        q, k, v = qkv.unflatten(1, (3, shape.heads, shape.head_dim)).unbind(1)
        out = torch.empty(q.shape, dtype=q.dtype)
        for batch in self._batches:
            queries = batch.rows[:, : batch.read] if layer == len(shape.reaches) - 1 else batch.rows
            # [segments, heads, length, head_dim]
            own_q, own_k, own_v = (x.transpose(1, 2) for x in (q[queries], k[batch.rows], v[batch.rows]))
            bias = self._bias(layer, own_q, own_k, relative)
            attended = torch.nn.functional.scaled_dot_product_attention(
                own_q, own_k, own_v, attn_mask=bias, scale=shape.scale
            )
            out[queries] = attended.transpose(1, 2)
        return out.flatten(1)

    def _bias(self, layer: int, q: Tensor, k: Tensor, relative: RelativeProjections | None) -> Tensor | None:
        """Mask of the logits: bool or float, broadcast to [segments, heads, queries, keys]."""
        distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        if (reach := self._shape.reaches[layer]) is not None:
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
