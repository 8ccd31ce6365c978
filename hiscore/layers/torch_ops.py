"""`Ops` in PyTorch: what the CPU runs and what the kernels are tested against."""

from typing import Any

import torch
from torch import Tensor

from hiscore.device.numerics import at_least_float32
from hiscore.layers.activations import gated
from hiscore.layers.fp8 import Quantised, quantise
from hiscore.layers.ops import Ops
from hiscore.layers.rope import Rope
from hiscore.layers.weights import LayerWeights


class TorchOps(Ops):
    """`Ops` in PyTorch, on any device."""

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, eps: float, activation: str, centred: bool = False
    ) -> None:
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._eps, self._centred = eps, centred
        self._activation = activation

    def embed(
        self, ids: Tensor, table: Tensor, scale: float, weight: Tensor | None, fp8: bool = False
    ) -> tuple[Tensor, Any]:
        x = table[ids].to(at_least_float32(table.dtype)) * scale
        return x, _for_projection(self._block_norm(x, weight, table.dtype), fp8)

    def rope_and_cache(
        self,
        layer: LayerWeights,
        rope: Rope | None,
        qkv: Tensor,
        positions: Tensor,
        pool: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        heads = qkv.unflatten(1, (-1, self._head_dim))
        q, k, v = heads.split([self._heads, self._kv_heads, self._kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            for x, weight in ((q, layer.q_norm), (k, layer.k_norm)):
                of_all = weight.ndim == 1 and len(weight) > self._head_dim
                x.copy_(self._norm(x.flatten(1) if of_all else x, weight, x.dtype).view_as(x))
        if rope is not None:
            self._rotate(heads[:, : self._heads + self._kv_heads], rope, positions)
        (rows,) = torch.nonzero(slot_mapping >= 0, as_tuple=True)
        pool[slot_mapping[rows]] = torch.stack((k[rows], v[rows]), dim=1)

    def _rotate(self, qk: Tensor, rope: Rope, positions: Tensor) -> None:
        first, second = qk.to(at_least_float32(qk.dtype)).chunk(2, dim=-1)
        cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        if rope.query_scales is not None:
            turned[:, : self._heads] *= rope.query_scales[positions][:, None, None]
        qk.copy_(turned)

    def add_norm(
        self,
        x: Tensor,
        update: Tensor,
        post_weight: Tensor | None,
        weight: Tensor | None,
        fp8: bool = False,
    ) -> Any:
        x += self._block_norm(update, post_weight, update.dtype)
        return _for_projection(self._block_norm(x, weight, update.dtype), fp8)

    def activate(self, gate_up: Tensor, fp8: bool = False) -> Any:
        return _for_projection(gated(gate_up, self._activation), fp8)

    def quantise(self, x: Tensor) -> Quantised:
        return quantise(x)

    def _block_norm(self, x: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
        return x.to(dtype) if weight is None else self._norm(x, weight, dtype)

    def _norm(self, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        y = x.float()
        if self._centred:
            y = y - y.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self._eps)
        return (y.to(at_least_float32(dtype)) * weight).to(dtype)


def _for_projection(x: Tensor, fp8: bool) -> Tensor | Quantised:
    return quantise(x) if fp8 else x
