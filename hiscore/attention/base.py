"""The interface between a decoder and its attention."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class AttentionShape:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    soft_cap: float | None
    windows: tuple[int | None, ...]
    """Tokens that a token of each layer sees, itself included; None: all."""
    sinks: tuple[Tensor, ...] | None = None
    """float32 [heads] for each layer: a head's own logit in every softmax, without a value."""


class Attention(Protocol):
    """Computes softmax(soft_cap(q k^T scale)) v for the rows of one forward, whose segments it was given before.

    A row sees its segment's context, then its own segment causally (see `metadata.Forward`).
    """

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        """Attend in one layer; returns [T, heads head_dim].

        Args:
            qkv: [T, (heads + 2 kv_heads) head_dim], rotated.
            pool: [slots, 2, kv_heads, head_dim], the layer's KV pool, new tokens already written.
        """
        ...
