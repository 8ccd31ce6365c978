"""`Ops` by kernels."""

import torch
import triton
from torch import Tensor

from hiscore.kernels import elementwise
from hiscore.model.rope import Rope
from hiscore.model.weights import LayerWeights


class TritonOps:
    """`Ops` on a CUDA device: each step one kernel."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, eps: float, activation: str) -> None:
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._eps = eps
        self._gelu = activation == "gelu_pytorch_tanh"

    def embed(self, ids: Tensor, table: Tensor, scale: float, weight: Tensor) -> tuple[Tensor, Tensor]:
        width = table.shape[1]
        x = torch.empty((len(ids), width), dtype=table.dtype, device=table.device)
        h = torch.empty_like(x)
        rounded = torch.tensor(scale, dtype=table.dtype).item()
        elementwise.embed[(len(ids),)](
            ids, table, x, h, weight, rounded, self._eps, WIDTH=width, BLOCK=triton.next_power_of_2(width)
        )
        return x, h

    def rotate_and_keep(
        self,
        layer: LayerWeights,
        rope: Rope,
        qkv: Tensor,
        positions: Tensor,
        pool: Tensor,
        write_slots: Tensor,
    ) -> None:
        normed = layer.q_norm is not None
        elementwise.rotate_and_keep[(len(qkv),)](
            qkv, positions, rope.cos, rope.sin,
            layer.q_norm if normed else qkv, layer.k_norm if normed else qkv,
            pool, write_slots, pool.stride(0), self._eps,
            HEADS=self._heads, KV_HEADS=self._kv_heads, HEAD_DIM=self._head_dim, NORMED=normed,
            BLOCK_HEADS=triton.next_power_of_2(self._heads + self._kv_heads),
            BLOCK_HALF=triton.next_power_of_2(self._head_dim // 2),
        )  # fmt: skip

    def add_norm(self, x: Tensor, update: Tensor, post_weight: Tensor | None, weight: Tensor) -> Tensor:
        h = torch.empty_like(x)
        if len(x):
            elementwise.add_norm[(len(x),)](
                x, update, h, weight if post_weight is None else post_weight, weight, self._eps,
                WIDTH=x.shape[1], SANDWICH=post_weight is not None, BLOCK=triton.next_power_of_2(x.shape[1]),
            )  # fmt: skip
        return h

    def activate(self, gate_up: Tensor) -> Tensor:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
        block = min(1024, triton.next_power_of_2(width))
        if rows:
            elementwise.activate[(rows, triton.cdiv(width, block))](
                gate_up, out, WIDTH=width, GELU=self._gelu, BLOCK=block
            )
        return out
