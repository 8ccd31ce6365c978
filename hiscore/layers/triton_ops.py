"""`Ops` by Triton kernels."""

from functools import cache
from itertools import pairwise
from typing import Any

import torch
import triton
from torch import Tensor

from hiscore.attention.metadata import TOKEN_BITS
from hiscore.device.numerics import at_least_float32
from hiscore.kernels import elementwise, gated_mlp, gemv
from hiscore.kernels import rope as rope_kernels
from hiscore.kernels.adapters import add_low_rank
from hiscore.layers import moe_triton
from hiscore.layers.adapters import Adapters
from hiscore.layers.fp8 import FP8, Quantised
from hiscore.layers.ops import Ops
from hiscore.layers.rope import Rope
from hiscore.layers.step_products import StepProducts
from hiscore.layers.weights import Experts, LayerWeights, Linear, Projection

GELU = {"gelu_pytorch_tanh": 1, "gelu": 2}
"""Codes of activations in kernels; 0 is SiLU."""
PDL_MIN_ROWS = 1024
"""Between cuBLAS products, dependent launches were faster from here on, and slower below."""

BLOCK_HEADS, BLOCK_HEADS_MAX_ROWS = 8, 128
"""Heads of a row that one program rotates, in a step of up to so many rows; of more rows it rotates all heads."""


@cache
def _of_device(index: int) -> tuple[bool, int]:
    properties = torch.cuda.get_device_properties(index)
    return properties.major >= 9, properties.multi_processor_count if properties.major == 9 else 0


def supports_pdl() -> bool:
    """True if the current GPU has programmatic dependent launch: a kernel may start before others end."""
    return torch.cuda.is_available() and _of_device(torch.cuda.current_device())[0]


def hopper_sm_count() -> int:
    """Multiprocessors of the current GPU if it is a Hopper, else 0: `gated_mlp` beat cuBLAS on Hopper only."""
    return _of_device(torch.cuda.current_device())[1] if torch.cuda.is_available() else 0


class TritonOps(Ops):
    """`Ops` on CUDA, one kernel for each operation.

    Given `step_products`, few rows are computed by other programs, whose sums differ from those that the same row
    gets among many. That is for decode steps alone: a prefill's scores must not depend on its batch.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        activation: str,
        centred: bool = False,
        step_products: StepProducts | None = None,
    ) -> None:
        super().__init__(heads, kv_heads, head_dim, eps, activation, centred)
        self._gelu = GELU.get(activation, 0)
        self._step_products = step_products

    def embed(
        self, ids: Tensor, table: Tensor, scale: float, weight: Tensor | None, fp8: bool = False
    ) -> tuple[Tensor, Tensor | Quantised]:
        width = table.shape[1]
        x = torch.empty((len(ids), width), dtype=at_least_float32(table.dtype), device=table.device)
        h = _empty_quantised(len(ids), width, x) if fp8 else torch.empty_like(x, dtype=table.dtype)
        elementwise.embed[(len(ids),)](
            ids, table, x, *_targets(h), x if weight is None else weight, scale, self._eps,
            WIDTH=width, NORMED=weight is not None, CENTRED=self._centred,
            BLOCK=triton.next_power_of_2(width), FP8=fp8, **self._launch_kwargs(len(ids)),
        )  # fmt: skip
        return x, h

    def rope_and_cache(
        self,
        layer: LayerWeights,
        rope: Rope | None,
        qkv: Tensor,
        positions: Tensor,
        pool: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        q_norm, scales = layer.q_norm, rope.query_scales if rope else None
        normed, by_head = q_norm is not None, q_norm is not None and q_norm.ndim == 2
        wide = q_norm is not None and not by_head and len(q_norm) > self._head_dim
        heads = self._heads + self._kv_heads
        block = triton.next_power_of_2(heads)
        if self._step_products and len(qkv) <= BLOCK_HEADS_MAX_ROWS and not wide:
            block = min(block, BLOCK_HEADS)
        rope_kernels.rope_and_cache[(len(qkv), triton.cdiv(heads, block))](
            qkv, positions, rope.cos if rope else qkv, rope.sin if rope else qkv,
            qkv if scales is None else scales,
            q_norm if normed else qkv, layer.k_norm if normed else qkv,
            pool, slot_mapping, pool.stride(0), self._eps,
            HEADS=self._heads, KV_HEADS=self._kv_heads, HEAD_DIM=self._head_dim, ROTATED=rope is not None,
            QUERY_SCALED=scales is not None, NORMED=normed, NORM_BY_HEAD=by_head, NORM_WIDE=wide,
            CENTRED=self._centred, BLOCK_HEADS=block,
            BLOCK_HALF=triton.next_power_of_2(self._head_dim // 2), **self._launch_kwargs(len(qkv)),
        )  # fmt: skip

    def add_norm(
        self, x: Tensor, update: Tensor, post_weight: Tensor | None, weight: Tensor | None, fp8: bool = False
    ) -> Tensor | Quantised:
        rows, width = x.shape
        h = _empty_quantised(rows, width, x) if fp8 else torch.empty_like(update)
        if rows:
            elementwise.add_norm[(rows,)](
                x, update, *_targets(h), x if post_weight is None else post_weight,
                x if weight is None else weight, self._eps,
                WIDTH=width, SANDWICH=post_weight is not None, NORMED=weight is not None, CENTRED=self._centred,
                BLOCK=triton.next_power_of_2(width), FP8=fp8, **self._launch_kwargs(rows),
            )  # fmt: skip
        return h

    def project(self, projection: Projection, h: Any) -> Tensor:
        product = self._step_product(projection, h)
        return super().project(projection, h) if product is None else product

    def project_add_norm(
        self,
        x: Tensor,
        projection: Projection,
        h: Any,
        post_weight: Tensor | None,
        weight: Tensor | None,
        fp8: bool = False,
    ) -> Any:
        # What can be left to the product that reads h is an RMS norm.
        leaves_norm = post_weight is None and not fp8 and not self._centred and gemv.fits(*x.shape)
        steps = self._step_products
        if weight is not None and leaves_norm and steps and steps.is_gemv(projection, h):
            gemv.multiply(h, projection.weight, projection.bias, onto=x, chained=supports_pdl())
            return gemv.Normed(x, weight, self._eps)
        return super().project_add_norm(x, projection, h, post_weight, weight, fp8)

    def gate(self, projection: Projection, h: Any, fp8: bool = False) -> Any:
        if fp8:
            return super().gate(projection, h, fp8)
        product = self._step_product(projection, h, self._gelu)
        if product is not None:
            return product
        sms = hopper_sm_count()
        if sms and isinstance(projection, Linear) and projection.bias is None and h.element_size() == 2:
            tile = gated_mlp.tile_for(*h.shape, len(projection.weight) // 2, sms)
            if tile:
                return gated_mlp.multiply(h, projection.weight, self._gelu, tile, sms)
        return super().gate(projection, h)

    def _step_product(self, projection: Projection, h: Any, gelu: int | None = None) -> Tensor | None:
        steps = self._step_products
        return steps.multiply(projection, h, supports_pdl(), gelu) if steps else None

    def _launch_kwargs(self, rows: int) -> dict[str, bool]:
        """Launch arguments of an operation on `rows` rows."""
        steps = self._step_products
        chained = (steps is not None and rows <= steps.chained_rows) or rows >= PDL_MIN_ROWS
        return gemv.pdl_launch_kwargs(chained and supports_pdl())

    def experts(self, experts: Experts, h: Tensor) -> Tensor:
        return moe_triton.moe(experts, h, step=self._step_products is not None)

    def activate(self, gate_up: Tensor, fp8: bool = False) -> Tensor | Quantised:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        if fp8:
            return self._activate_quantised(gate_up, rows, width)
        out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
        block = min(1024, triton.next_power_of_2(width))
        if rows:
            elementwise.activate[(rows, triton.cdiv(width, block))](
                gate_up, out, WIDTH=width, GELU=self._gelu, BLOCK=block
            )
        return out

    def _activate_quantised(self, gate_up: Tensor, rows: int, width: int) -> Quantised:
        out = _empty_quantised(rows, width, gate_up)
        if rows:
            elementwise.activate_quantised[(rows,)](
                gate_up, out.values, out.scales, WIDTH=width, GELU=self._gelu,
                BLOCK=triton.next_power_of_2(width), num_warps=_warps(width),
            )  # fmt: skip
        return out

    def quantise(self, x: Tensor) -> Quantised:
        rows, width = x.shape
        out = _empty_quantised(rows, width, x)
        if rows:
            elementwise.quantise[(rows,)](
                x, out.values, out.scales,
                WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=_warps(width),
            )  # fmt: skip
        return out


class AdaptedTritonOps(TritonOps):
    """`TritonOps` under adapters: what a graph captures serves every mixture of them."""

    def __init__(self, adapters: Adapters, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._products = adapters.products

    def adapt(self, ids: Tensor) -> Tensor:
        self._numbers = ids >> TOKEN_BITS
        return ids & ((1 << TOKEN_BITS) - 1)

    def project(self, projection: Projection, h: Any) -> Tensor:
        out = super().project(projection, h)
        for each in self._products.get(id(projection), ()) if len(out) else ():
            rank = max(last - first for first, last in pairwise(each.firsts))
            add_low_rank(out[:, each.columns], h, each.down, each.up, each.table, rank, self._numbers)
        return out

    def gate(self, projection: Projection, h: Any, fp8: bool = False) -> Any:
        if id(projection) in self._products:
            return self.activate(self.project(projection, h), fp8)
        return super().gate(projection, h, fp8)


def _empty_quantised(rows: int, width: int, like: Tensor) -> Quantised:
    return Quantised(
        torch.empty((rows, width), dtype=FP8, device=like.device),
        torch.empty((rows, 1), dtype=torch.float32, device=like.device),
    )


def _targets(out: Tensor | Quantised) -> tuple[Tensor, Tensor]:
    """Values and scales as a kernel takes them; without fp8 it does not touch the second."""
    return (out, out) if isinstance(out, Tensor) else (out.values, out.scales)


def _warps(width: int) -> int:
    """Warps such that a thread holds about 16 values of a row; with more, registers would spill."""
    return min(max(triton.next_power_of_2(width) // 512, 4), 16)
