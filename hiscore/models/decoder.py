"""The decoder over packed rows: one loop for every family and every device.

No decode step and no sampling. Keys and values live in their layer only, but for the few that packing names: those
of a query that a later forward sees again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hiscore.attention.base import Attention, AttentionShape
from hiscore.layers.ops import Ops
from hiscore.layers.rope import Rope
from hiscore.layers.weights import LayerWeights, Weights
from hiscore.models.config import read_architecture
from hiscore.models.loader import load_weights


@dataclass(frozen=True)
class Rows:
    """A forward's rows on the device: int32 [T] each; slot_mapping for each layer, -1 for what is not kept."""

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Sequence[Tensor]


class Decoder:
    """Weights, rotary tables and the loop over layers; steps, attention and the pool come from outside.

    Under fp8 the layers' projections and what goes into them are in 8 bits; the rest stays in dtype (bfloat16).
    """

    def __init__(self, checkpoint: Path, device: torch.device, dtype: torch.dtype, fp8: bool = False) -> None:
        self.architecture, config = read_architecture(checkpoint)
        a = self.architecture
        self.weights: Weights = load_weights(checkpoint, a, device, dtype, fp8)
        self.device, self.dtype, self.fp8 = device, dtype, fp8
        self._ropes = {kind: Rope(config, kind, a.head_dim, device) for kind in set(a.rope_kinds)}

    @property
    def attention_shape(self) -> AttentionShape:
        a = self.architecture
        return AttentionShape(
            a.heads, a.kv_heads, a.head_dim, a.attention_scale, a.attention_soft_cap, a.windows
        )

    @property
    def slot_bytes(self) -> int:
        """Bytes that one token's keys and values take in all layers."""
        a = self.architecture
        return 2 * a.layers * a.kv_heads * a.head_dim * self.weights.embedding.element_size()

    def new_pool(self, slots: int) -> Tensor:
        """An empty pool of keys and values: [layers, slots, 2, kv_heads, head_dim]."""
        a = self.architecture
        shape = (a.layers, slots, 2, a.kv_heads, a.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def body(
        self, rows: Rows, ops: Ops, attention: Attention, pool: Tensor | Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """All layers up to the last one's attention, over the forward that attention is planned for.

        pool: for each layer [slots, 2, kv_heads, head_dim], which may differ in their slots.
        Returns the residual stream [T, hidden] and what the last layer attended to [T, heads head_dim].
        """
        a, layers, fp8 = self.architecture, self.weights.layers, self.fp8
        table, norm = self.weights.embedding, layers[0].input_norm
        x, h = ops.embed(rows.input_ids, table, a.embedding_scale, norm, fp8)
        for index, layer in enumerate(layers):
            qkv = ops.project(layer.qkv, h)
            rope = self._ropes[a.rope_kinds[index]]
            ops.rope_and_cache(layer, rope, qkv, rows.positions, pool[index], rows.slot_mapping[index])
            attended = attention.attend(index, qkv, pool[index])
            if index < a.layers - 1:
                norm = layers[index + 1].input_norm
                inner = self._after_attention(layer, x, attended, ops)
                h = ops.project_add_norm(x, layer.down, inner, layer.post_mlp_norm, norm, fp8)
        return x, attended

    def tail(self, x: Tensor, attended: Tensor, ops: Ops) -> Tensor:
        """The rest of the last layer and the final norm, for those rows alone that are read: [R, hidden]."""
        layer = self.weights.layers[-1]
        out = ops.project(layer.down, self._after_attention(layer, x, attended, ops))
        # The head reads it, in full precision.
        final: Tensor = ops.add_norm(x, out, layer.post_mlp_norm, self.weights.final_norm)
        return final

    def _after_attention(self, layer: LayerWeights, x: Tensor, attended: Tensor, ops: Ops) -> Any:
        """Add what attention gave to x, in place; returns what the MLP's last projection is made of."""
        read = ops.quantise(attended) if self.fp8 else attended
        h = ops.project_add_norm(x, layer.output, read, layer.post_attention_norm, layer.mlp_norm, self.fp8)
        return ops.gate(layer.gate_up, h, self.fp8)
