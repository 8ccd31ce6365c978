"""The operations of a decoder layer around attention, in PyTorch: for the CPU, and for tests of the kernels.

`triton_ops` runs kernels on CUDA. Rows are new tokens, of any number of sequences; no operation mixes rows.
"""

from typing import Any

import torch
from torch import Tensor

from hiscore.device.numerics import at_least_float32
from hiscore.layers.activations import gated
from hiscore.layers.fp8 import Quantised, quantise
from hiscore.layers.moe import moe
from hiscore.layers.rope import Rope
from hiscore.layers.weights import Experts, LayerWeights, Projection


class Ops:
    """Operations on T rows, in PyTorch on any device.

    Names used throughout:
        x: The residual stream, [T, hidden] in `numerics.at_least_float32`.
        h: The normalised input of a block, [T, hidden] in the model's dtype.
        Norm weights are float32.

    What a projection reads (h, and the result of `gate`) is a Tensor, or under `fp8` a `Quantised`. An
    implementation may hand itself something else from one operation to the next, so callers only pass it on.
    """

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, eps: float, activation: str, centred: bool = False
    ) -> None:
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._eps, self._centred = eps, centred
        self._activation = activation

    def adapt(self, ids: Tensor) -> Tensor:
        """Take the rows' token ids, int32 [T], without the numbers of adapters, which hold for what follows."""
        return ids

    def embed(
        self, ids: Tensor, table: Tensor, scale: float, weight: Tensor | None, fp8: bool = False
    ) -> tuple[Tensor, Any]:
        """Look up embeddings and normalise them for the first layer; returns x and h.

        Args:
            ids: int32 [T].
            table: [vocabulary, hidden].
            scale: Multiplies the embeddings.
            weight: [hidden], of the first layer's input norm; None where the family has none.
        """
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
        """Normalise (where the layer has norms for it) and rotate q and k in place; write k and v to the KV pool.

        Args:
            rope: Rotary tables of this layer; None: it does not rotate.
            qkv: [T, (heads + 2 kv_heads) head_dim], updated in place.
            positions, slot_mapping: int32 [T]; a slot of -1 writes no key and value.
            pool: [slots, 2, kv_heads, head_dim], updated in place.
        """
        kv_heads, head_dim = pool.shape[-2:]
        heads = qkv.unflatten(1, (-1, head_dim))
        # A layer that reads another's keys and values has none of its own.
        q, k, v = heads.tensor_split((self._heads, self._heads + kv_heads), dim=1)
        ones = None if layer.gemma4 is None else v.new_ones(head_dim)
        for x, weight in ((q, layer.q_norm), (k, layer.k_norm), (v, ones)):
            if weight is not None:
                of_all = weight.ndim == 1 and len(weight) > head_dim
                x.copy_(self._norm(x.flatten(1) if of_all else x, weight, x.dtype).view_as(x))
        if rope is not None:
            self._rotate(heads[:, : self._heads + kv_heads], rope, positions)
        if k.numel():
            (rows,) = torch.nonzero(slot_mapping >= 0, as_tuple=True)
            pool[slot_mapping[rows]] = torch.stack((k[rows], v[rows]), dim=1)

    def add_norm(
        self, x: Tensor, update: Tensor, post_weight: Tensor | None, weight: Tensor | None, fp8: bool = False
    ) -> Any:
        """Add a block's output to x, in place, and normalise the sum for the next block: h.

        `post_weight` is of a norm of the output, [T, hidden], itself; None where the family has none. Without
        `weight`, h is the sum itself.
        """
        x += self._block_norm(update, post_weight, update.dtype)
        return _for_projection(self._block_norm(x, weight, update.dtype), fp8)

    def project(self, projection: Projection, h: Any) -> Tensor:
        """Apply a projection to the result of another operation: [T, in] to [T, out]."""
        out: Tensor = projection(h)
        return out

    def project_add_norm(
        self,
        x: Tensor,
        projection: Projection,
        h: Any,
        post_weight: Tensor | None,
        weight: Tensor | None,
        fp8: bool = False,
    ) -> Any:
        """`add_norm` of a projection of h, [T, in] to [T, hidden]; the result is only for `project` and `gate`."""
        return self.add_norm(x, self.reduce(self.project(projection, h)), post_weight, weight, fp8)

    def reduce(self, partial: Tensor) -> Tensor:
        """The sum over ranks of what each adds to the residual stream; partial may be overwritten."""
        return partial

    def gate(self, projection: Projection, h: Any, fp8: bool = False) -> Any:
        """act(gate) * up of a joint projection to gate and up, [T, in] to [T, 2 F], gate first: [T, F]."""
        return self.activate(self.project(projection, h), fp8)

    def experts(self, experts: Experts, h: Tensor) -> Tensor:
        """A mixture of experts: [T, hidden] to [T, hidden]."""
        return moe(experts, h)

    def activate(self, gate_up: Tensor, fp8: bool = False) -> Any:
        """act(gate) * up: [T, 2 F] to [T, F]."""
        return _for_projection(gated(gate_up, self._activation), fp8)

    def quantise(self, x: Tensor) -> Quantised:
        """Quantise what no other operation quantises, for a projection in fp8: [T, width]."""
        return quantise(x)

    def _rotate(self, qk: Tensor, rope: Rope, positions: Tensor) -> None:
        first, second = qk.to(at_least_float32(qk.dtype)).chunk(2, dim=-1)
        cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        if rope.query_scales is not None:
            turned[:, : self._heads] *= rope.query_scales[positions][:, None, None]
        qk.copy_(turned)

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
