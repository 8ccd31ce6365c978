"""`Ops` of one of several ranks: those of its device, with the exchanges between ranks that a block needs.

A rank looks up the tokens that it holds, and computes its own heads, neurons and experts. What enters the residual
stream is summed over ranks, so the stream is the same on all of them, bit by bit.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hiscore.device.numerics import at_least_float32
from hiscore.layers.ops import Ops
from hiscore.layers.rope import Rope
from hiscore.layers.weights import LayerWeights
from hiscore.parallel.group import Group


@dataclass(frozen=True)
class WideNorms:
    """Norms over all heads of q, and over all of k, of which a rank has some; widths are of all heads.

    `k_copies` ranks have each head of k.
    """

    q_width: int
    k_width: int
    k_copies: int
    eps: float


class ParallelOps(Ops):
    def __init__(
        self,
        inner: Ops,
        group: Group,
        vocabulary: slice,
        heads: int,
        kv_heads: int,
        head_dim: int,
        wide_norms: WideNorms | None,
    ) -> None:
        """Wrap the operations of a device; `vocabulary` are the tokens whose embeddings the rank has."""
        self._inner, self._group = inner, group
        self._vocabulary = vocabulary
        self._q, self._k = heads * head_dim, kv_heads * head_dim
        self._wide_norms = wide_norms
        # For these nothing is exchanged.
        for name in ("add_norm", "project", "gate", "experts", "activate", "quantise"):
            setattr(self, name, getattr(inner, name))

    def embed(
        self, ids: Tensor, table: Tensor, scale: float, weight: Tensor | None, fp8: bool = False
    ) -> tuple[Tensor, Any]:
        mine = ids - self._vocabulary.start
        held = (mine >= 0) & (mine < len(table))
        # One rank has the row, the others add zeros.
        rows = self._group.sum(table[torch.where(held, mine, 0)].masked_fill_(~held[:, None], 0))
        places = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
        return self._inner.embed(places, rows, scale, weight, fp8)

    def rope_and_cache(
        self,
        layer: LayerWeights,
        rope: Rope | None,
        qkv: Tensor,
        positions: Tensor,
        pool: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        if self._wide_norms is not None and layer.q_norm is not None and layer.k_norm is not None:
            self._normalise(self._wide_norms, qkv, layer.q_norm, layer.k_norm)
            layer = replace(layer, q_norm=None, k_norm=None)
        self._inner.rope_and_cache(layer, rope, qkv, positions, pool, slot_mapping)

    def _normalise(self, of: WideNorms, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> None:
        """Normalise q and k in place, each by the squares of all ranks."""
        q, k = qkv[:, : self._q], qkv[:, self._q : self._q + self._k]
        squares = torch.stack([x.float().pow(2).sum(-1) for x in (q, k)], dim=1)
        squares = self._group.sum(squares)
        squares[:, 1] /= of.k_copies
        for x, weight, column, width in ((q, q_norm, 0, of.q_width), (k, k_norm, 1, of.k_width)):
            factor = torch.rsqrt(squares[:, column, None] / width + of.eps)
            x.copy_((x.float() * factor).to(at_least_float32(x.dtype)) * weight)

    def reduce(self, partial: Tensor) -> Tensor:
        return self._group.sum(partial)
