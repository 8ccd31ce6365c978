"""The steps of a layer between its matrix products: one interface, in plain torch here, in kernels for CUDA.

All of them work on rows, one for each new token: what is in one row never reaches another.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from hiscore.layers.rope import Rope
from hiscore.layers.weights import LayerWeights, Projection, Quantised, quantise

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def residual_dtype(dtype: torch.dtype) -> torch.dtype:
    """The residual stream's dtype for a model of `dtype`: float32 at least.

    Every layer adds to it twice. Rounded to bfloat16 each time, those sums were most of what made an item's score
    depend on how the products of its batch were cut up.
    """
    return torch.promote_types(dtype, torch.float32)


class Ops(Protocol):
    """x: the residual stream [T, hidden] in `residual_dtype`; h: its norm, what a block reads, in the model's.

    Norm weights are float32.

    Projections are plain products, unless an implementation has a better way.

    What goes into a projection (h, and what `gate` gives) is a Tensor, under fp8 a Quantised.
    """

    def embed(
        self, ids: Tensor, table: Tensor, scale: float, weight: Tensor, fp8: bool = False
    ) -> tuple[Tensor, Any]:
        """x = table[ids] * scale and h = norm(x), from ids int32 [T]."""
        ...

    def rope_and_cache(
        self,
        layer: LayerWeights,
        rope: Rope,
        qkv: Tensor,
        positions: Tensor,
        pool: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """Normalise (where the layer does) and rotate q and k in place; keep k and v where a slot is given.

        qkv: [T, (heads + 2 kv_heads) head_dim]; pool: [slots, 2, kv_heads, head_dim]; positions and slot_mapping:
        int32 [T], a slot of -1 for none.
        """

    def add_norm(
        self, x: Tensor, update: Tensor, post_weight: Tensor | None, weight: Tensor, fp8: bool = False
    ) -> Any:
        """x += update (normalised first, where there is a post_weight) in place; returns h = norm(x)."""
        ...

    def project(self, projection: Projection, h: Any) -> Tensor:
        """The projection of what another step has made for it: [T, in] to [T, out]."""
        found: Tensor = projection(h)
        return found

    def project_add_norm(
        self,
        x: Tensor,
        projection: Projection,
        h: Any,
        post_weight: Tensor | None,
        weight: Tensor,
        fp8: bool = False,
    ) -> Any:
        """`add_norm` of a projection; what it returns is for `project` and `gate` alone."""
        return self.add_norm(x, self.project(projection, h), post_weight, weight, fp8)

    def gate(self, projection: Projection, h: Any, fp8: bool = False) -> Any:
        """act(gate) * up of a projection to both, as `project` takes it: [T, in] to [T, F]."""
        return self.activate(self.project(projection, h), fp8)

    def activate(self, gate_up: Tensor, fp8: bool = False) -> Any:
        """act(gate) * up, from [T, 2 F] to [T, F]."""
        ...

    def quantise(self, x: Tensor) -> Quantised:
        """What no other step has made ready for a projection in fp8, from [T, width]."""
        ...


class TorchOps(Ops):
    """`Ops` in plain torch."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, eps: float, activation: str) -> None:
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._eps = eps
        self._activation = ACTIVATIONS[activation]

    def embed(
        self, ids: Tensor, table: Tensor, scale: float, weight: Tensor, fp8: bool = False
    ) -> tuple[Tensor, Any]:
        # transformers rounds the factor to the table's dtype.
        x = table[ids].to(residual_dtype(table.dtype)) * torch.tensor(scale, dtype=table.dtype).item()
        return x, _for_projection(self._norm(x, weight, table.dtype), fp8)

    def rope_and_cache(
        self,
        layer: LayerWeights,
        rope: Rope,
        qkv: Tensor,
        positions: Tensor,
        pool: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        heads = qkv.unflatten(1, (-1, self._head_dim))
        q, k, v = heads.split([self._heads, self._kv_heads, self._kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q.copy_(self._norm(q, layer.q_norm, q.dtype))
            k.copy_(self._norm(k, layer.k_norm, k.dtype))
        turned = heads[:, : self._heads + self._kv_heads]
        first, second = turned.to(residual_dtype(qkv.dtype)).chunk(2, dim=-1)
        cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
        turned.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
        (rows,) = torch.nonzero(slot_mapping >= 0, as_tuple=True)
        pool[slot_mapping[rows]] = torch.stack((k[rows], v[rows]), dim=1)

    def add_norm(
        self, x: Tensor, update: Tensor, post_weight: Tensor | None, weight: Tensor, fp8: bool = False
    ) -> Any:
        x += update if post_weight is None else self._norm(update, post_weight, update.dtype)
        return _for_projection(self._norm(x, weight, update.dtype), fp8)

    def activate(self, gate_up: Tensor, fp8: bool = False) -> Any:
        gate, up = gate_up.chunk(2, dim=-1)
        return _for_projection(self._activation(gate) * up, fp8)

    def quantise(self, x: Tensor) -> Quantised:
        return quantise(x)

    def _norm(self, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self._eps)
        return (y.to(residual_dtype(dtype)) * weight).to(dtype)


def _for_projection(x: Tensor, fp8: bool) -> Tensor | Quantised:
    return quantise(x) if fp8 else x
