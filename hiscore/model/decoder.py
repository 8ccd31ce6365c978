"""The decoder's forward over a packed batch: token ids to the hidden states of the scored rows.

No decode step and no sampling. Keys and values live in their layer only, but for the few that packing names: those
of a query that a later forward sees again.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.base import Attention, AttentionShape
from hiscore.model.architecture import read_architecture
from hiscore.model.rope import Rope, rotate
from hiscore.model.weights import LayerWeights, Weights, load_weights
from hiscore.packing import NOT_KEPT, Forward

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


class Decoder:
    """Weights, rotary tables and the loop over layers; attention and the pool come from outside."""

    def __init__(self, checkpoint: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.architecture, config = read_architecture(checkpoint)
        a = self.architecture
        self.weights: Weights = load_weights(checkpoint, a, device, dtype)
        self.device = device
        self._ropes = {kind: Rope(config, kind, a.head_dim, device) for kind in set(a.rope_kinds)}
        self._activation = ACTIVATIONS[a.activation]

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
        return torch.empty(shape, dtype=self.weights.embedding.dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: Forward, attention: Attention, pool: Tensor) -> Tensor:
        """Run one packed forward, reading from the pool what it names there and writing what is to be kept.

        Returns the scored rows' hidden states after the final norm, [R, hidden_size].
        """
        a = self.architecture
        attention.plan(batch)
        x = self.weights.embedding[self._to_device(batch.input_ids)]
        if a.embedding_scale != 1.0:
            # transformers rounds the factor to the weights' dtype.
            x = x * torch.tensor(a.embedding_scale, dtype=x.dtype, device=x.device)
        positions = self._to_device(batch.positions)
        angles = {kind: rope.angles(positions) for kind, rope in self._ropes.items()}
        scored = self._to_device(batch.scored_rows)
        kept = np.flatnonzero(batch.write_slots != NOT_KEPT)
        kept_rows, kept_slots = self._to_device(kept), self._to_device(batch.write_slots[kept])
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._project(layer, x, angles[a.rope_kinds[index]])
            pool[index, kept_slots, 0], pool[index, kept_slots, 1] = k[kept_rows], v[kept_rows]
            attended = attention.run(index, q, k, v, pool[index]).flatten(1)
            if index == a.layers - 1:
                # Nobody reads the other rows of the last layer.
                x, attended = x[scored], attended[scored]
            x = self._finish(layer, x, attended)
        return rms_norm(x, self.weights.final_norm, a.norm_eps)

    def _to_device(self, values: object) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def _project(
        self, layer: LayerWeights, x: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        a = self.architecture
        qkv = layer.qkv(rms_norm(x, layer.input_norm, a.norm_eps)).unflatten(-1, (-1, a.head_dim))
        q, k, v = qkv.split([a.heads, a.kv_heads, a.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, a.norm_eps), rms_norm(k, layer.k_norm, a.norm_eps)
        return rotate(q, *angles), rotate(k, *angles), v

    def _finish(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
        eps = self.architecture.norm_eps
        out = layer.output(attended)
        if layer.post_attention_norm is not None:
            out = rms_norm(out, layer.post_attention_norm, eps)
        x = x + out
        gate, up = layer.gate_up(rms_norm(x, layer.mlp_norm, eps)).chunk(2, dim=-1)
        out = layer.down(self._activation(gate) * up)
        if layer.post_mlp_norm is not None:
            out = rms_norm(out, layer.post_mlp_norm, eps)
        return x + out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32; weight float32."""
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)
