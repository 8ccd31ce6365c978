"""The decoder's forward over a packed batch: token ids to the hidden states of the scored rows.

No decode step, no sampling, and no KV cache: keys and values live in their layer only, but for those that a later
forward of the same batch still sees.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hiscore.attention.base import Attention, AttentionShape
from hiscore.model.architecture import read_architecture
from hiscore.model.rope import Rope, rotate
from hiscore.model.weights import LayerWeights, Weights, load_weights
from hiscore.packing import Forward

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@dataclass
class KeptKeysValues:
    """Keys and values carried from one forward to the next, for each layer [slots, 2, kv_heads, head_dim]."""

    layers: list[Tensor]


@dataclass(frozen=True)
class DecoderOutput:
    """hidden: [R, hidden_size], final norm applied, in the order of `Forward.scored_rows`."""

    hidden: Tensor
    kept: KeptKeysValues | None


class Decoder:
    """Weights, rotary tables and the loop over layers; attention comes from outside."""

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

    @torch.inference_mode()
    def forward(self, batch: Forward, attention: Attention, kept: KeptKeysValues | None) -> DecoderOutput:
        """Run one packed forward.

        kept: what the forward before returned; its slots come first in this forward's. Returns the scored rows'
        hidden states and what `batch.keep` names, if anything.
        """
        a = self.architecture
        attention.plan(batch)
        x = self.weights.embedding[self._to_device(batch.input_ids)]
        if a.embedding_scale != 1.0:
            # transformers rounds the factor to the weights' dtype.
            x = x * torch.tensor(a.embedding_scale, dtype=x.dtype, device=x.device)
        positions = self._to_device(batch.positions)
        angles = {kind: rope.angles(positions) for kind, rope in self._ropes.items()}
        scored, keep = self._to_device(batch.scored_rows), self._to_device(batch.keep)
        to_keep: list[Tensor] = []
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._project(layer, x, angles[a.rope_kinds[index]])
            kv = torch.stack((k, v), dim=1)
            if kept is not None:
                kv = torch.cat((kept.layers[index], kv))
            if len(batch.keep):
                to_keep.append(kv[keep])
            attended = attention.run(index, q, kv[:, 0], kv[:, 1]).flatten(1)
            if index == a.layers - 1:
                # Nobody reads the other rows of the last layer.
                x, attended = x[scored], attended[scored]
            x = self._finish(layer, x, attended)
        hidden = rms_norm(x, self.weights.final_norm, a.norm_eps)
        return DecoderOutput(hidden, KeptKeysValues(to_keep) if to_keep else None)

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
