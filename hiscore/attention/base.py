"""The interface between the decoder and whatever computes attention."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class AttentionShape:
    """What attention must know of a model; windows are per layer, None where a token sees everything."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    soft_cap: float | None
    windows: tuple[int | None, ...]


class Attention(Protocol):
    """Computes ``softmax(cap(q k^T * scale)) v`` by the packed rule: context, then causal in the segment.

    Whoever runs a forward tells the implementation of its groups and segments first.
    """

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        """Attend in one layer of the forward at hand.

        qkv: the new tokens' rotated heads, [T, (heads + 2 kv_heads) head_dim]; pool: the layer's
        [slots, 2, kv_heads, head_dim], new tokens already written. Returns [T, heads head_dim].
        """
        ...
